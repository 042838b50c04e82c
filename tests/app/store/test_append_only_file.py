"""A Redis whose disk was full starts again, with all that it had accepted.

The disk is full for the server alone: the largest file that it may write is bounded for a while.
"""

import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis

from app.errors import StoreUnavailable
from app.local.redis_server import find_server
from app.store.append_only_file import AppendOnlyFile
from app.store.connect import connect

LONGEST_S = 20.0
UNLIMITED = resource.RLIM_INFINITY
Server = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def client(free_port: int) -> Iterator[redis.Redis]:
    client = connect(f"redis://127.0.0.1:{free_port}/0")
    yield client
    client.connection_pool.disconnect()


@pytest.fixture
def server(tmp_path: Path, free_port: int) -> Iterator[Server]:
    """Give a function that starts the server over its file; it ends with the test."""
    words = ["--port", str(free_port), "--dir", str(tmp_path), "--save", "", "--logfile", "log", "--appendonly"]
    started: list[subprocess.Popen[bytes]] = []

    def start(file: str = "yes") -> "subprocess.Popen[bytes]":
        # A write beyond the bound is an error then, and no signal that ends the server.
        started.append(subprocess.Popen([str(find_server()), *words, file], restore_signals=False))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait(LONGEST_S)


def await_answer(client: redis.Redis, process: "subprocess.Popen[bytes]") -> None:
    ends_s = time.monotonic() + LONGEST_S
    while time.monotonic() < ends_s:
        assert process.poll() is None, "the server refuses its file"
        with suppress(StoreUnavailable):
            client.ping()
            return
        time.sleep(0.05)
    pytest.fail("no answer")


def fill(client: redis.Redis, accepted: dict[str, str], names: str, count: int = 400) -> None:
    """Write values, and keep those that were accepted."""
    for i in range(count):
        with suppress(StoreUnavailable):
            client.set(f"{names}{i}", "x" * 200)
            accepted[f"{names}{i}"] = "x" * 200


def rewritten(client: redis.Redis) -> bool:
    about = client.info("persistence")
    return not about["aof_rewrite_in_progress"] and not about["aof_rewrite_scheduled"]


def await_that(holds: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + LONGEST_S
    while not holds():
        assert time.monotonic() < ends_s
        time.sleep(0.05)


def test_a_server_whose_disk_was_full_starts_again(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    process = server()
    await_answer(client, process)
    file, accepted = AppendOnlyFile(client), dict[str, str]()
    fill(client, accepted, "before")
    client.bgrewriteaof()
    await_that(lambda: rewritten(client))
    fill(client, accepted, "after")
    assert not file.look(), "no write has failed"

    largest = max(path.stat().st_size for path in (tmp_path / "appendonlydir").iterdir())
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (largest + 1000, UNLIMITED))
    await_that(lambda: _is_full(client, accepted))
    assert not file.look(), "a rewrite would fail as well"
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (UNLIMITED, UNLIMITED))
    await_that(lambda: client.info("persistence")["aof_last_write_status"] == "ok")
    fill(client, accepted, "later")

    assert file.look()
    await_that(lambda: rewritten(client))
    assert not file.look() and not file.look(), "one is enough"
    fill(client, accepted, "last")
    time.sleep(1.1)  # what is written each second is on the disk
    process.send_signal(signal.SIGKILL)
    process.wait(LONGEST_S)
    await_answer(client, server())
    assert {name: client.get(name) for name in accepted} == accepted


def _is_full(client: redis.Redis, accepted: dict[str, str]) -> bool:
    fill(client, accepted, f"full{len(accepted)}.", 20)
    return client.info("persistence")["aof_last_write_status"] != "ok"


def test_a_server_without_such_a_file_is_left_alone(server: Server, client: redis.Redis) -> None:
    await_answer(client, server("no"))
    file = AppendOnlyFile(client)
    client.config_resetstat()
    assert not file.look() and not file.look()
    assert client.info("commandstats")["cmdstat_info"]["calls"] == 2, "it looks no more"

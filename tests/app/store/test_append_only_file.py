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
from app.store.append_only_file import AppendOnlyFile, close_gaps
from app.store.connect import connect
from tests.workers.cluster import wait_for

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


def test_a_server_whose_disk_was_full_starts_again(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    process = server()
    await_answer(client, process)
    file, accepted = AppendOnlyFile(client), dict[str, str]()
    fill(client, accepted, "before")
    client.bgrewriteaof()
    wait_for(lambda: rewritten(client))
    fill(client, accepted, "after")
    assert not file.look(), "no write has failed"

    fail_a_write(process, client, accepted, tmp_path)
    fill(client, accepted, "later")

    assert file.look()
    wait_for(lambda: rewritten(client))
    assert not file.look() and not file.look(), "one is enough"
    fill(client, accepted, "last")
    time.sleep(1.1)  # what is written each second is on the disk
    process.send_signal(signal.SIGKILL)
    process.wait(LONGEST_S)
    await_answer(client, server())
    assert {name: client.get(name) for name in accepted} == accepted


def test_a_server_that_died_before_the_rewrite_starts_with_its_gap_closed(
    server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    process = server()
    await_answer(client, process)
    client.bgrewriteaof()
    wait_for(lambda: rewritten(client))
    accepted = {"zeros": "\0\r\n\0\0*1\r\n"}
    client.set("zeros", accepted["zeros"])
    fill(client, accepted, "before")
    fail_a_write(process, client, accepted, tmp_path)
    fill(client, accepted, "later")
    client.execute_command("WAITAOF", 1, 0, int(1000 * LONGEST_S))
    process.send_signal(signal.SIGKILL)
    process.wait(LONGEST_S)
    (file,) = (tmp_path / "appendonlydir").glob("*.incr.aof")
    with file.open("ab") as end:
        end.write(b"*2\r\n$3\r\nSE")
    size = file.stat().st_size
    close_gaps(file)
    assert file.stat().st_size < size
    await_answer(client, server())
    assert {name: client.get(name) for name in accepted} == accepted


def fail_a_write(
    process: "subprocess.Popen[bytes]", client: redis.Redis, accepted: dict[str, str], folder: Path
) -> None:
    """Let the server's file not grow until a write has failed, and then grow again."""
    largest = max(path.stat().st_size for path in (folder / "appendonlydir").iterdir())
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (largest + 1000, UNLIMITED))
    wait_for(lambda: _is_full(client, accepted))
    fill(client, accepted, "refused", 1)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (UNLIMITED, UNLIMITED))
    wait_for(lambda: client.info("persistence")["aof_last_write_status"] == "ok")


def _is_full(client: redis.Redis, accepted: dict[str, str]) -> bool:
    fill(client, accepted, f"full{len(accepted)}.", 20)
    return client.info("persistence")["aof_last_write_status"] != "ok"


def test_a_rewrite_that_fails_is_tried_again_later_and_later(
    server: Server, client: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = server()
    await_answer(client, process)
    fill(client, accepted := {}, "before")
    fail_a_write(process, client, accepted, tmp_path)
    file, now = AppendOnlyFile(client), [1000.0]
    monkeypatch.setattr("app.store.append_only_file.time.monotonic", lambda: now[0])
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (2**12, UNLIMITED))  # less than a rewrite needs
    begun_s = []
    for _ in range(16):
        if file.look():
            begun_s.append(now[0])
            wait_for(lambda: rewritten(client))
        now[0] += 0.5
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (UNLIMITED, UNLIMITED))
    assert begun_s == [1000.0, 1001.0, 1003.0, 1007.0]
    now[0] += 8.0
    assert file.look()
    wait_for(lambda: rewritten(client))
    assert not file.look() and not file._is_due


def test_a_lack_of_rights_is_logged_once_and_others_rewrite(
    server: Server, client: redis.Redis, tmp_path: Path, free_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    process = server()
    await_answer(client, process)
    fill(client, accepted := {}, "before")
    client.acl_setuser("looker", enabled=True, passwords=["+secret"], commands=["+info", "+ping", "+client"])
    fail_a_write(process, client, accepted, tmp_path)
    looker = connect(f"redis://looker:secret@127.0.0.1:{free_port}/0")
    file = AppendOnlyFile(looker)
    assert not file.look() and not file.look()
    looker.connection_pool.disconnect()
    assert caplog.text.count("may not look after") == 1 and "anew" not in caplog.text
    assert AppendOnlyFile(client).look()


def test_a_server_without_such_a_file_is_left_alone(server: Server, client: redis.Redis) -> None:
    await_answer(client, server("no"))
    file = AppendOnlyFile(client)
    client.config_resetstat()
    assert not file.look() and not file.look()
    assert "cmdstat_bgrewriteaof" not in client.info("commandstats")

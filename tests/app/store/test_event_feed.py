"""The feed of committed events: one subscription for all readers, and nothing missed, twice or out of order."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

import app.store.connect
import app.store.event_feed
from app.errors import NotFound, StoreUnavailable
from app.messages import Event, FinishReason
from app.store.connect import connect
from app.store.event_feed import EventFeed, Reader
from app.store.keys import Keys
from app.store.memory import MemoryStore
from app.store.requests import RequestStore
from tests.app.store.bench import NAMESPACE, make_record, redis_bench, tokens_event
from tests.app.store.relay import Relay
from tests.workers.cluster import wait_for

NEVER_S = 300.0


@pytest.fixture
def store(redis_client: redis.Redis) -> RequestStore:
    bench = redis_bench(redis_client)
    bench.revive("v1")
    assert isinstance(bench.store, RequestStore)
    for number in range(20):
        bench.store.create(make_record(f"r{number}"), limit=20)
        bench.store.assign(f"r{number}", "v1")
    return bench.store


@pytest.fixture
def feed(redis_url: str, store: RequestStore) -> Iterator[EventFeed]:
    """Make a feed with connections of its own, as a web process has."""
    with closing(connect(redis_url)) as client:
        feed = EventFeed(client, NAMESPACE, RequestStore(client, NAMESPACE, ttl_s=60.0, active_ttl_s=60.0))
        yield feed
        feed.close()


@pytest.fixture
def by_message_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app.store.event_feed, "CHECK_S", NEVER_S)


def subscribed(client: redis.Redis) -> bool:
    return dict(client.pubsub_numsub(Keys(NAMESPACE).committed)) == {Keys(NAMESPACE).committed: 1}


def listeners(client: redis.Redis) -> set[str]:
    return {one["id"] for one in client.client_list(_type="pubsub")}


def commit(store: RequestStore, *places: int, offset: int = 0, finish: FinishReason | None = None) -> None:
    store.commit("v1", [(f"r{place}", tokens_event(offset, offset + 1, offset + 2, finish=finish)) for place in places])


@pytest.mark.usefixtures("by_message_alone")
def test_one_message_a_step_brings_each_reader_its_events(
    feed: EventFeed, store: RequestStore, redis_client: redis.Redis
) -> None:
    with feed.reading(["r1", "r2"]) as both, feed.reading(["r2"]) as second, feed.reading(["r3"], 4) as late:
        wait_for(lambda: subscribed(redis_client), limit_s=5.0, what="a subscription")
        assert [reader.read(0.0) for reader in (both, second, late)] == [[], [], []]
        with closing(redis_client.pubsub(ignore_subscribe_messages=True)) as heard:
            heard.subscribe(Keys(NAMESPACE).committed)
            heard.get_message(timeout=1.0)
            commit(store, 1, 2, 3, 4)
            store.end("r2", FinishReason.CANCELLED)
            while len(messages := [one for one in [heard.get_message(timeout=1.0)] if one]) == 0:
                pass
            assert messages[0]["data"].count("offset") == 4
        found = read_all(both, 3)
        assert [(place, event.tokens) for place, event in found] == [(0, (1, 2)), (1, (1, 2)), (1, ())]
        assert not both.has_ended and read_all(second, 2) == [(0, event) for place, event in found if place == 1]
        assert second.has_ended and late.read(0.2) == []


def read_all(reader: Reader, count: int) -> list[tuple[int, Event]]:
    found: list[tuple[int, Event]] = []
    until_s = time.monotonic() + 10.0
    while len(found) < count and time.monotonic() < until_s:
        found += reader.read(0.5)
    return found


def test_a_commit_without_a_message_is_found_by_the_next_check(
    feed: EventFeed, store: RequestStore, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A verifier of an older version commits so."""
    monkeypatch.setattr(app.store.event_feed, "CHECK_S", 0.1)
    with feed.reading(["r1"]) as reader:
        wait_for(lambda: subscribed(redis_client), limit_s=5.0, what="a subscription")
        monkeypatch.setattr(store._keys, "committed", "unheard")
        for offset in (0, 2, 4):
            commit(store, 1, offset=offset, finish=FinishReason.STOP if offset == 4 else None)
            assert [event.offset for _, event in read_all(reader, 1)] == [offset]
        assert reader.has_ended


@pytest.mark.usefixtures("by_message_alone")
def test_a_subscription_that_is_cut_is_made_again_and_what_it_missed_is_read(
    feed: EventFeed, store: RequestStore, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, looked = feed._check, list[bool]()

    def check(*, only_silent: bool) -> None:
        look(only_silent=only_silent)
        looked.append(only_silent)

    monkeypatch.setattr(feed, "_check", check)
    with feed.reading(["r1"]) as reader:
        wait_for(lambda: False in looked, limit_s=5.0, what="the look at all readers behind a subscription")
        monkeypatch.setattr(store._keys, "committed", "unheard")
        assert reader.read(0.0) == []
        for offset in (0, 2, 4):
            commit(store, 1, offset=offset)
            assert reader.read(0.1) == []
            redis_client.client_kill_filter(_type="pubsub")
            assert [event.offset for _, event in read_all(reader, 1)] == [offset]


def test_a_subscription_that_went_silent_is_made_again(
    store: RequestStore, redis_client: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half-open, say: nothing ends it, and nothing comes."""
    monkeypatch.setattr(app.store.event_feed, "CHECK_S", 0.3)
    monkeypatch.setattr(app.store.connect, "SOCKET_TIMEOUT_S", 0.3)
    with Relay(urlsplit(redis_url).port or 0) as relay, closing(connect(f"redis://127.0.0.1:{relay.port}/0")) as client:
        feed = EventFeed(client, NAMESPACE, RequestStore(client, NAMESPACE, ttl_s=60.0, active_ttl_s=60.0))
        with feed.reading(["r1"]) as reader:
            wait_for(lambda: subscribed(redis_client), limit_s=5.0, what="a subscription")
            assert reader.read(0.0) == []
            first = listeners(redis_client)
            relay.mute()
            wait_for(lambda: listeners(redis_client) - first, limit_s=5.0, what="another subscription")
            monkeypatch.setattr(app.store.event_feed, "CHECK_S", NEVER_S)
            commit(store, 1)
            assert [event.tokens for _, event in read_all(reader, 1)] == [(1, 2)]
        feed.close()


def test_readers_that_wait_cost_redis_one_call_a_check_and_no_connection(
    feed: EventFeed, store: RequestStore, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app.store.event_feed, "CHECK_S", 0.2)
    sent: list[int] = []
    with ExitStack() as stack:
        readers = [stack.enter_context(feed.reading([f"r{place}"])) for place in range(20)]
        assert [reader.read(0.0) for reader in readers] == [[]] * 20
        wait_for(lambda: subscribed(redis_client), limit_s=5.0, what="a subscription")
        open_before = redis_client.info("clients")["connected_clients"]
        send = redis.Connection.send_packed_command

        def count(self: redis.Connection, *args: Any, **options: Any) -> None:
            sent.append(threading.get_ident())
            send(self, *args, **options)  # type: ignore[no-untyped-call]

        monkeypatch.setattr(redis.Connection, "send_packed_command", count)
        waiting = [threading.Thread(target=reader.read, args=(1.0,)) for reader in readers]
        for thread in waiting:
            thread.start()
        for thread in waiting:
            thread.join()
        monkeypatch.setattr(redis.Connection, "send_packed_command", send)
        assert 6 <= len(sent) <= 14 and len(set(sent)) == 1
        assert redis_client.info("clients")["connected_clients"] == open_before


def test_the_thread_and_its_subscription_end_with_the_last_reader(
    feed: EventFeed, store: RequestStore, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app.store.event_feed, "CHECK_S", 0.05)
    for _ in range(2):
        with feed.reading(["r1"]):
            wait_for(lambda: subscribed(redis_client), limit_s=5.0, what="a subscription")
        wait_for(lambda: not subscribed(redis_client), limit_s=5.0, what="no subscription")


def test_a_request_that_is_forgotten_is_not_found(
    feed: EventFeed, store: RequestStore, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app.store.event_feed, "CHECK_S", 0.05)
    with feed.reading(["r1"]) as reader:
        assert reader.read(0.0) == []
        redis_client.delete(Keys(NAMESPACE).request("r1"))
        with pytest.raises(NotFound):
            reader.read(5.0)


@pytest.mark.usefixtures("by_message_alone")
@pytest.mark.parametrize("data", ["", "{", "[]", '[["r1"]]', '[["r1", {"offset": -1}]]', "[[1, 2]]", '[["r1", 7]]'])
def test_a_message_that_is_none_costs_nothing(
    feed: EventFeed, store: RequestStore, redis_client: redis.Redis, data: str
) -> None:
    with feed.reading(["r1"]) as reader:
        wait_for(lambda: subscribed(redis_client), limit_s=5.0, what="a subscription")
        redis_client.publish(Keys(NAMESPACE).committed, data)
        commit(store, 1)
        assert [event.tokens for _, event in read_all(reader, 1)] == [(1, 2)]


EVENTS = [tokens_event(2 * i, 2 * i, 2 * i + 1, finish=FinishReason.STOP if i == 5 else None) for i in range(6)]


@given(st.lists(st.sampled_from([*EVENTS, None]), max_size=20), st.sampled_from(["none", "all", "some"]))
def test_whatever_messages_come_a_reader_gets_each_token_once(messages: list[Event | None], how: str) -> None:
    """Lost, repeated, late: the store has the truth."""
    store = MemoryStore(ttl_s=60.0, active_ttl_s=60.0, is_alive=lambda owner: True)
    store.create(make_record(), limit=1)
    store.assign("r1", "v1")
    reader = Reader(EventFeed(connect("redis://127.0.0.1:1"), NAMESPACE, store), store, ["r1"], 0)
    tokens: list[int] = []

    def take(place: int, event: Event) -> bool:
        if how == "none" or (how == "some" and event.offset % 4):
            return False
        assert event.offset == len(tokens)
        tokens.extend(event.tokens)
        return True

    assert reader.read(0.0) == []
    for event in EVENTS:
        store.commit("v1", [("r1", event)])
    feeding = threading.Thread(target=lambda: [reader.put(0, event) for event in [*messages, None]])
    feeding.start()
    while not reader.has_ended:
        for _, event in reader.read(5.0, take):
            assert event.offset == len(tokens)
            tokens += event.tokens
    feeding.join()
    assert tokens == list(range(12))


def test_an_event_before_which_one_is_missing_is_not_taken() -> None:
    store = MemoryStore(ttl_s=60.0, active_ttl_s=60.0, is_alive=lambda owner: True)
    store.create(make_record(), limit=1)
    store.assign("r1", "v1")
    reader = Reader(EventFeed(connect("redis://127.0.0.1:1"), NAMESPACE, store), store, ["r1"], 0)
    taken, found = list[int](), list[int]()

    def take(place: int, event: Event) -> bool:
        taken.append(event.offset)
        return True

    assert reader.read(0.0) == []
    for event in EVENTS[:3]:
        store.commit("v1", [("r1", event)])
    reading = threading.Thread(target=lambda: found.extend(event.offset for _, event in reader.read(20.0, take)))
    reading.start()
    time.sleep(0.2)  # it waits then
    reader.put(0, EVENTS[0])
    reader.put(0, EVENTS[2])
    reading.join()
    assert (taken, found) == ([0], [2, 4])


def test_an_error_of_what_takes_events_is_the_readers_own(
    feed: EventFeed, store: RequestStore, redis_client: redis.Redis
) -> None:
    def failing(place: int, event: Event) -> bool:
        raise ValueError("broken")

    with feed.reading(["r1"]) as reader, feed.reading(["r1"]) as other:
        wait_for(lambda: subscribed(redis_client), limit_s=5.0, what="a subscription")
        assert reader.read(0.0) == other.read(0.0) == []
        committing = threading.Timer(0.1, commit, (store, 1))
        committing.start()
        with pytest.raises(ValueError, match="broken"):
            reader.read(10.0, failing)
        assert [event.tokens for _, event in read_all(other, 1)] == [(1, 2)]


def test_nothing_that_was_read_is_lost_where_another_request_cannot_be(store: RequestStore) -> None:
    """Redis answers for one request of a reader and not for the next."""

    class Flapping:
        """A store that fails at its second question."""

        def __init__(self) -> None:
            self.asked = 0

        def events(self, request_id: str, offset: int) -> list[Event]:
            self.asked += 1
            if self.asked == 2:
                raise StoreUnavailable("away")
            return store.events(request_id, offset)

    commit(store, 1, 2, finish=FinishReason.STOP)
    flapping: Any = Flapping()
    reader = Reader(Any, flapping, ["r1", "r2"], 0)
    found = reader.read(0.0)
    with pytest.raises(StoreUnavailable):
        reader.read(0.0)
    found += reader.read(0.0)
    assert sorted(place for place, _ in found) == [0, 1] and reader.has_ended

"""A deployment's Redis behind Sentinels: a master that is killed costs time, and no token."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from app.errors import StoreUnavailable
from app.messages import FinishReason
from app.store.connect import connect
from app.store.event_feed import EventFeed
from app.store.nodes import Nodes
from app.store.protocol import Outcome
from app.store.requests import RequestStore
from tests.app.store.bench import NAMESPACE, make_record, tokens_event
from tests.app.store.sentinel import Watched, watched

BEFORE, ALL = 40, 80  # tokens committed before the kill, and in all
LONGEST_S = 30.0


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Watched]:
    with watched(tmp_path) as pair:
        yield pair


def test_a_killed_master_loses_no_token_and_no_reader(pair: Watched, free_port: int) -> None:
    read: list[int] = []
    with closing(connect(pair.url(free_port))) as writing, closing(connect(pair.url())) as reading:
        store = RequestStore(writing, NAMESPACE, ttl_s=60.0, active_ttl_s=60.0)
        Nodes(writing, NAMESPACE, lease_s=60.0).beat("verify", "v1", "v1", progress_s=0.0, info={})
        assert store.create(make_record(), limit=1)
        assert store.assign("r1", "v1")
        other = RequestStore(reading, NAMESPACE, ttl_s=60.0, active_ttl_s=60.0)
        feed = EventFeed(reading, NAMESPACE, other)
        follower = threading.Thread(target=_follow, args=(feed, read))
        follower.start()
        length = _commit(store, 0, BEFORE)
        old = pair.master()
        pair.kill_master()
        length = _commit(store, length, ALL)
        follower.join(LONGEST_S)
        feed.close()
        assert pair.master() != old
        assert read == list(range(ALL)) == list(store.snapshot("r1").tokens)
        assert store.snapshot("r1").finish_reason is FinishReason.LENGTH


def _commit(store: RequestStore, length: int, until: int) -> int:
    """Commit tokens one by one, as a verifier would: through an outage, and again what a new master lacks."""
    ends_s = time.monotonic() + LONGEST_S
    while length < until:
        assert time.monotonic() < ends_s
        event = tokens_event(length, length, finish=FinishReason.LENGTH if length + 1 == ALL else None)
        try:
            [outcome] = store.commit("v1", [("r1", event)])
            length = length + 1 if outcome is Outcome.COMMITTED else len(store.snapshot("r1").tokens)
        except StoreUnavailable:
            time.sleep(0.1)
    return length


def _follow(feed: EventFeed, read: list[int]) -> None:
    with feed.reading(["r1"]) as reader:
        while not reader.has_ended:
            try:
                for _, event in reader.read(1.0):
                    read.extend(event.tokens)
            except StoreUnavailable:
                time.sleep(0.1)


def test_a_durable_request_is_on_a_replica_before_it_is_accepted(
    pair: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.store.connect.DISK_MS", 1500)
    with closing(connect(pair.url())) as client:
        store = RequestStore(client, NAMESPACE, ttl_s=60.0, active_ttl_s=60.0, durable=True)
        assert store.create(make_record("r1"), limit=9)
        replica = pair.servers[pair.replica()]
        replica.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(StoreUnavailable):
                store.create(make_record("r2"), limit=9)
        finally:
            replica.send_signal(signal.SIGCONT)


def test_sentinels_that_are_all_away_or_know_no_such_name_are_an_outage(
    pair: Watched, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.store.connect.RETRIES", 1)
    for url in (pair.url().replace("/pace/", "/other/"), f"redis+sentinel://127.0.0.1:{free_port}/pace"):
        with closing(connect(url)) as client, pytest.raises(StoreUnavailable, match="No master found for"):
            client.ping()

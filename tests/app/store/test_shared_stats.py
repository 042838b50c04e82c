"""Shared statistics against a real server: merged, never overwritten, never counted twice."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest
import redis

from app.config import ROOT
from app.counters import Counters, field
from app.errors import StoreUnavailable
from app.metrics import ASKED, GROUP
from app.store.shared_stats import SharedStatsStore, StatsExchange

SERIES = field(ASKED, ("a",))


def counted(counters: Counters, count: int) -> None:
    for _ in range(count):
        counters.count(ASKED, "a")


def write(counters: Counters, store: SharedStatsStore) -> StatsExchange:
    exchange = StatsExchange(counters, store)
    exchange.beat()
    return exchange


@pytest.fixture
def store(redis_client: redis.Redis) -> SharedStatsStore:
    return SharedStatsStore(redis_client, "test")


def test_two_writers_add_up(store: SharedStatsStore) -> None:
    for count in (700, 900):
        counters = Counters()
        counted(counters, count)
        write(counters, store)
    assert store.load(GROUP) == {SERIES: [1600.0]}


def test_a_batch_decays_what_was_there_and_adds_its_own(store: SharedStatsStore) -> None:
    assert store.merge("g", "one", 1, {"a": ([1.0, 1.0], [8.0, 4.0])}) == {"a": [8.0, 4.0]}
    assert store.merge("g", "two", 1, {"a": ([0.5, 0.25], [1.0, 2.0])}) == {"a": [5.0, 3.0]}


class LosesReplies(SharedStatsStore):
    """The real store behind a network that breaks after the script has run."""

    broken = True

    def merge(self, *args, **kwargs):
        reply = super().merge(*args, **kwargs)
        if self.broken:
            raise StoreUnavailable("gone")
        return reply


def test_a_batch_whose_reply_was_lost_counts_once(redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.store.shared_stats.WRITE_EVERY_S", 0.0)
    store, counters = LosesReplies(redis_client, "test"), Counters()
    exchange = StatsExchange(counters, store)
    counted(counters, 300)
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            exchange.beat()
        counted(counters, 10)
    store.broken = False
    for _ in range(2):
        exchange.beat()
    assert store.load(GROUP) == {SERIES: [330.0]}


def test_nothing_is_written_when_nothing_was_learnt(redis_client: redis.Redis, store: SharedStatsStore) -> None:
    write(Counters(), store)
    assert redis_client.keys("*") == []


def test_an_exchange_writes_once_in_a_while_only(store: SharedStatsStore) -> None:
    counters = Counters()
    exchange = write(counters, store)
    counted(counters, 10)
    exchange.beat()
    assert store.load(GROUP) == {}, "it has only just been here"


def test_every_key_dies(redis_client: redis.Redis, store: SharedStatsStore) -> None:
    counters = Counters()
    counted(counters, 10)
    write(counters, store)
    keys = redis_client.keys("*")
    assert len(keys) == 2
    assert all(redis_client.pttl(key) > 0 for key in keys)


def test_a_group_has_room_for_so_many_fields_only(redis_client: redis.Redis) -> None:
    store = SharedStatsStore(redis_client, "test", max_fields=3)
    for batch in range(1, 8):
        store.merge("g", "w", batch, {str(batch): ([1.0], [1.0])})
    assert len(store.load("g")) == 3
    assert "7" in store.load("g")


def test_fields_that_cannot_be_read_are_left_out(redis_client: redis.Redis, store: SharedStatsStore) -> None:
    for name, text in {"a": "[1, 2]", "b": "no numbers", "c": "7", "d": "[1e999]"}.items():
        redis_client.hset(f"test:sums:{GROUP}", name, text)
    assert store.load(GROUP) == {"a": [1.0, 2.0]}


WRITER = """
    import sys
    from app.counters import Counters
    from app.metrics import ASKED
    from app.store.connect import connect
    from app.store.shared_stats import SharedStatsStore, StatsExchange
    counters, written = Counters(), 0
    exchange = StatsExchange(counters, SharedStatsStore(connect(sys.argv[1]), "test"))
    while True:
        counters.count(ASKED, "a", by=100.0)
        exchange._beaten_s = 0.0
        exchange.beat()
        written += 100
        print(written, flush=True)
"""


def test_a_killed_writer_loses_its_unwritten_updates_only(redis_url: str, store: SharedStatsStore) -> None:
    program = [sys.executable, "-c", textwrap.dedent(WRITER), redis_url]
    writers = [subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    written = []
    try:
        for writer in writers:
            written.append([int(writer.stdout.readline()) for _ in range(5)][-1])
        for writer in writers:
            os.kill(writer.pid, signal.SIGKILL)
            writer.wait(10)
    finally:
        for writer in writers:
            writer.kill()
            writer.stdout.close()
            writer.wait(10)
    (found,) = store.load(GROUP)[SERIES]
    assert found >= sum(written) == 1000, "both writers' batches are in"
    assert found % 100 == 0, "whole batches, each once"

"""Shared statistics against a real server: merged, never overwritten, never counted twice."""

import os
import random
import signal
import subprocess
import sys
import textwrap

import pytest
import redis

from app.calibration import GROUP, Calibration
from app.config import ROOT
from app.errors import StoreUnavailable
from app.store.shared_stats import SharedStatsStore, StatsExchange

CONFIDENCES = (0.1, 0.3, 0.5, 0.7, 0.9)


def observed(calibration: Calibration, count: int, truth: float, seed: int = 0) -> None:
    rng = random.Random(seed)
    for _ in range(count):
        confidence = rng.random()
        calibration.update("a", confidence, rng.random() < truth * confidence)


def write(calibration: Calibration, store: SharedStatsStore) -> StatsExchange:
    exchange = StatsExchange(calibration, store)
    exchange.beat()
    return exchange


@pytest.fixture
def store(redis_client: redis.Redis) -> SharedStatsStore:
    return SharedStatsStore(redis_client, "test")


def test_a_new_process_goes_on_from_an_old_ones_sums(store: SharedStatsStore) -> None:
    old, new = Calibration(), Calibration()
    observed(old, 2000, truth=0.5)
    write(old, store)
    write(new, store)
    assert [new.value("a", c) for c in CONFIDENCES] == pytest.approx([old.value("a", c) for c in CONFIDENCES])
    assert new.report() == old.report()
    assert new.report()["a"].observations == 2000


def test_two_writers_make_the_map_that_one_would_have_made(store: SharedStatsStore) -> None:
    one, two, both = Calibration(), Calibration(), Calibration()
    for calibration in (one, two):
        write(calibration, store)
    observed(one, 700, 0.9, seed=1)
    observed(two, 900, 0.2, seed=2)
    observed(both, 700, 0.9, seed=1)
    observed(both, 900, 0.2, seed=2)
    write(one, store)
    write(two, store)
    new = Calibration()
    write(new, store)
    assert [new.value("a", c) for c in CONFIDENCES] == pytest.approx([both.value("a", c) for c in CONFIDENCES])
    found, wanted = new.report()["a"], both.report()["a"]
    assert (found.observations, found.raw_error) == (1600, pytest.approx(wanted.raw_error))


def test_updates_between_a_write_and_its_reply_are_kept(store: SharedStatsStore) -> None:
    calibration = Calibration()
    observed(calibration, 100, 0.5)
    changes = calibration.changes(GROUP)
    observed(calibration, 50, 0.5, seed=9)
    before = [calibration.value("a", c) for c in CONFIDENCES]
    calibration.absorb(GROUP, store.merge(GROUP, "w", 1, changes))
    assert [calibration.value("a", c) for c in CONFIDENCES] == pytest.approx(before)
    assert calibration.report()["a"].observations == 150


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
    store, calibration = LosesReplies(redis_client, "test"), Calibration()
    exchange = StatsExchange(calibration, store)
    observed(calibration, 300, 0.5)
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            exchange.beat()
        observed(calibration, 10, 0.5)
    store.broken = False
    for _ in range(2):
        exchange.beat()
    other = Calibration()
    write(other, store)
    assert other.report()["a"].observations == calibration.report()["a"].observations == 330


def test_nothing_is_written_when_nothing_was_learnt(redis_client: redis.Redis, store: SharedStatsStore) -> None:
    write(Calibration(), store)
    assert redis_client.keys("*") == []


def test_an_exchange_writes_once_in_a_while_only(store: SharedStatsStore) -> None:
    calibration = Calibration()
    exchange = write(calibration, store)
    observed(calibration, 10, 0.5)
    exchange.beat()
    assert store.load(GROUP) == {}, "it has only just been here"


def test_every_key_dies(redis_client: redis.Redis, store: SharedStatsStore) -> None:
    calibration = Calibration()
    observed(calibration, 10, 0.5)
    write(calibration, store)
    keys = redis_client.keys("*")
    assert len(keys) == 2
    assert all(redis_client.pttl(key) > 0 for key in keys)


def test_a_group_has_room_for_so_many_fields_only(redis_client: redis.Redis) -> None:
    store = SharedStatsStore(redis_client, "test", max_fields=3)
    for batch in range(1, 8):
        store.merge("g", "w", batch, {str(batch): ([1.0], [1.0])})
    assert len(store.load("g")) == 3
    assert "7" in store.load("g")


def test_fields_of_another_version_are_passed_over(redis_client: redis.Redis, store: SharedStatsStore) -> None:
    for field, text in {"a": "[1, 2]", "b": "no numbers", "c": "7", "d": "[1e999]"}.items():
        redis_client.hset(f"test:sums:{GROUP}", field, text)
    calibration = Calibration()
    write(calibration, store)
    assert calibration.report() == {}
    observed(calibration, 10, 0.5)
    write(calibration, store)
    assert len(store.load(GROUP)["a"]) > 2, "and replaced"


WRITER = """
    import random, sys, time
    from app.calibration import Calibration
    from app.store.connect import connect
    from app.store.shared_stats import SharedStatsStore, StatsExchange
    calibration = Calibration()
    exchange = StatsExchange(calibration, SharedStatsStore(connect(sys.argv[1]), "test"))
    rng = random.Random(int(sys.argv[2]))
    while True:
        for _ in range(100):
            confidence = rng.random()
            calibration.update("a", confidence, rng.random() < confidence / 2)
        exchange._beaten_s = 0.0
        exchange.beat()
        print(calibration.report()["a"].observations, flush=True)
"""


def test_a_killed_writer_loses_its_unwritten_updates_only(
    redis_url: str, redis_client: redis.Redis, store: SharedStatsStore
) -> None:
    program = [sys.executable, "-c", textwrap.dedent(WRITER), redis_url]
    writers = [subprocess.Popen([*program, str(seed)], cwd=ROOT, stdout=subprocess.PIPE, text=True) for seed in (1, 2)]
    try:
        for writer in writers:
            for _ in range(5):
                assert writer.stdout.readline()
        os.kill(writers[0].pid, signal.SIGKILL)
        writers[0].wait(10)
        at_kill = store.load(GROUP)["a"][-1]
        for _ in range(5):
            writers[1].stdout.readline()
        os.kill(writers[1].pid, signal.SIGKILL)
        writers[1].wait(10)
    finally:
        for writer in writers:
            writer.kill()
            writer.stdout.close()
            writer.wait(10)
    survivor = Calibration()
    write(survivor, store)
    found = survivor.report()["a"]
    assert found.observations >= at_kill >= 1000, "both writers' batches are in"
    assert found.observations % 100 == 0, "whole batches, each once"
    for confidence in CONFIDENCES:
        assert survivor.value("a", confidence) == pytest.approx(confidence / 2, abs=0.12)

"""The counts of processes add up in the store: once, across processes, and within bounds."""

import pytest
import redis

from app.counters import MOST_SERIES, Counters, field, series
from app.metrics import GROUP, METRICS, QUEUE_WAIT, STEP, TOKENS, WAIT_SECONDS
from app.store.shared_stats import SharedStatsStore, StatsExchange


@pytest.fixture
def sums(redis_client: redis.Redis) -> SharedStatsStore:
    return SharedStatsStore(redis_client, "test")


def test_two_processes_and_a_restarted_one_add_up(sums: SharedStatsStore) -> None:
    for count in (3, 4, 5):  # the third has the first one's name and another life
        counters = Counters()
        exchange = StatsExchange(counters, sums)
        counters.count(TOKENS, "target", by=count)
        counters.observe(QUEUE_WAIT, 0.003, "draft")
        exchange.close()
    found = sums.load(GROUP)
    assert found[field(TOKENS, ("target",))] == [12.0]
    waits = found[field(QUEUE_WAIT, ("draft",))]
    assert waits[-1] == pytest.approx(0.009) and sum(waits[:-1]) == 3


def test_written_counts_are_not_written_again(sums: SharedStatsStore) -> None:
    counters = Counters()
    exchange = StatsExchange(counters, sums)
    counters.count(TOKENS, "target")
    exchange.close()
    exchange.close()
    assert sums.load(GROUP)[field(TOKENS, ("target",))] == [1.0]


def test_a_batch_whose_reply_was_lost_counts_once(sums: SharedStatsStore, monkeypatch: pytest.MonkeyPatch) -> None:
    counters = Counters()
    exchange = StatsExchange(counters, sums)
    counters.count(TOKENS, "target")
    merge = sums.merge

    def lost(*args: object) -> None:
        merge(*args)  # type: ignore[arg-type]
        raise ConnectionError

    with monkeypatch.context() as patch:
        patch.setattr(sums, "merge", lost)
        with pytest.raises(ConnectionError):
            exchange.close()
    counters.count(TOKENS, "target")
    exchange.close()
    assert sums.load(GROUP)[field(TOKENS, ("target",))] == [2.0]


def test_values_fall_into_the_bucket_whose_bound_they_do_not_exceed() -> None:
    counters = Counters()
    for value in (WAIT_SECONDS[0], WAIT_SECONDS[0] * 1.01, WAIT_SECONDS[-1], WAIT_SECONDS[-1] + 1):
        counters.observe(QUEUE_WAIT, value, "fuse")
    (_, added) = counters.changes(GROUP)[field(QUEUE_WAIT, ("fuse",))]
    assert added[:2] == [1.0, 1.0] and added[len(WAIT_SECONDS) - 1 : -1] == [1.0, 1.0]


def test_names_off_the_wire_stay_within_bounds() -> None:
    counters = Counters()
    for i in range(3 * MOST_SERIES):
        counters.count(TOKENS, f"liar-{i}" + "x" * 1000)
    changes = counters.changes(GROUP)
    assert len(changes) <= MOST_SERIES + 1 and max(map(len, changes)) < 150
    assert sum(added[0] for _, added in changes.values()) == 3 * MOST_SERIES


def test_a_series_is_read_back_and_nothing_else() -> None:
    assert series(field(QUEUE_WAIT, ('a"b\n',))) == ("queue_wait_seconds", ('a"b\n',))
    assert series("no JSON") is series("[1]") is series("[]") is series("7") is None


def test_metrics_are_named_with_their_unit_and_explained() -> None:
    assert METRICS[STEP.name] is STEP
    for metric in METRICS.values():
        assert metric.help.endswith(".") and not metric.name.endswith("_total")
        assert [*metric.buckets] == sorted(set(metric.buckets))

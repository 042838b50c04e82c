"""Admission, ownership, commits, ends: RequestStore (real server) and MemoryStore keep the same promises."""

import time

import pytest
from msgspec.structs import replace

from app.errors import NotFound, QueueFull
from app.messages import Event, FinishReason, Stats, Status
from app.store.protocol import Orphan, Outcome
from tests.app.store.bench import Bench, make_record, tokens_event


def test_a_new_request_is_active_and_reads_back_whole(bench: Bench) -> None:
    assert bench.store.create(make_record(), limit=10)
    found = bench.store.snapshot("r1")
    assert found.record == make_record()
    assert (found.status, found.tokens, found.owner, found.strikes) == (Status.ACTIVE, (), "", 0)
    assert (found.finish_reason, found.error, found.ended_s, found.stats) == (None, None, None, Stats())
    assert bench.store.active() == 1


def test_the_same_id_is_admitted_once_even_when_full(bench: Bench) -> None:
    assert bench.store.create(make_record(), limit=1)
    assert not bench.store.create(make_record(), limit=1)
    assert bench.store.active() == 1


def test_admission_stops_at_the_limit_and_resumes_when_one_ends(bench: Bench) -> None:
    bench.store.create(make_record("r1"), limit=2)
    bench.store.create(make_record("r2"), limit=2)
    with pytest.raises(QueueFull) as full:
        bench.store.create(make_record("r3"), limit=2)
    assert full.value.retry_after_s > 0
    bench.store.end("r1", FinishReason.CANCELLED)
    assert bench.store.create(make_record("r3"), limit=2)


def test_unknown_requests_are_not_found(bench: Bench) -> None:
    for call in (
        lambda: bench.store.snapshot("no"),
        lambda: bench.store.events("no", 0),
        lambda: bench.store.end("no", FinishReason.CANCELLED),
    ):
        with pytest.raises(NotFound):
            call()
    assert not bench.store.assign("no", "v1")
    assert bench.store.task("no") is None
    assert bench.store.commit("v1", [("no", tokens_event(0, 1))]) == [Outcome.ENDED]


def test_a_live_owner_keeps_its_request(running: Bench) -> None:
    running.revive("v2")
    assert not running.store.assign("r1", "v2")
    assert running.store.assign("r1", "v1")
    assert running.store.owned("v1") == {"r1"}
    assert running.store.owned("v2") == set()
    assert running.store.orphans() == []


def test_a_dead_owners_request_moves_with_a_strike(running: Bench) -> None:
    running.bury("v1")
    assert running.store.orphans() == [Orphan("r1", 0)]
    assert running.store.assign("r1", "v2")
    assert running.store.orphans() == [Orphan("r1", 1)]  # v2 has no lease yet
    running.revive("v2")
    assert running.store.orphans() == []
    assert (running.store.owned("v1"), running.store.owned("v2")) == (set(), {"r1"})
    assert running.store.snapshot("r1").strikes == 1


def test_tokens_of_one_target_are_gone_on_with_by_no_other(bench: Bench) -> None:
    bench.store.create(make_record(), limit=10)
    assert bench.store.target("r1") == bench.store.target("no") == ""
    assert bench.store.assign("r1", "v1", "this")
    bench.bury("v1")
    assert bench.store.orphans() == [Orphan("r1", 0)], "nothing is begun, so any target may have it"
    assert bench.store.assign("r1", "v2", "other")
    bench.revive("v2")
    bench.store.commit("v2", [("r1", tokens_event(0, 1))])
    bench.bury("v2")
    assert bench.store.orphans() == [Orphan("r1", 0, "other")]
    assert not bench.store.assign("r1", "v3", "this") and not bench.store.assign("r1", "v3")
    found = bench.store.snapshot("r1")
    assert (found.owner, found.target, found.strikes) == ("v2", "other", 0)
    assert bench.store.assign("r1", "v3", "other")
    assert (bench.store.snapshot("r1").owner, bench.store.target("r1")) == ("v3", "other")


def test_tokens_of_an_owner_that_named_no_target_are_gone_on_with_by_any(running: Bench) -> None:
    running.store.commit("v1", [("r1", tokens_event(0, 1))])
    running.bury("v1")
    assert running.store.orphans() == [Orphan("r1", 0)]
    assert running.store.assign("r1", "v2", "this")


def test_a_commit_clears_the_strikes(running: Bench) -> None:
    running.bury("v1")
    running.store.assign("r1", "v2")
    running.store.commit("v2", [("r1", tokens_event(0, 1))])
    assert running.store.snapshot("r1").strikes == 0


def test_new_requests_are_orphans_oldest_first_up_to_the_count(bench: Bench) -> None:
    for number in range(5):
        bench.store.create(make_record(f"r{number}"), limit=10)
        time.sleep(0.002)  # the index is in milliseconds
    assert [orphan.request_id for orphan in bench.store.orphans()] == [f"r{i}" for i in range(5)]
    assert [orphan.request_id for orphan in bench.store.orphans(count=2)] == ["r0", "r1"]


def test_commits_append_in_order(running: Bench) -> None:
    first, second = tokens_event(0, 5, 6), tokens_event(2, 7)
    assert running.store.commit("v1", [("r1", first), ("r1", second)]) == [Outcome.COMMITTED] * 2
    found = running.store.snapshot("r1")
    assert (found.tokens, found.stats) == ((5, 6, 7), second.stats)
    assert running.store.events("r1", 0) == [first, second]


def test_each_commit_of_a_batch_stands_alone(running: Bench) -> None:
    running.store.create(make_record("r2"), limit=10)
    running.store.create(make_record("r3"), limit=10)
    running.store.assign("r3", "v1")
    events = [("r1", tokens_event(3, 1)), ("r2", tokens_event(0, 1)), ("r3", tokens_event(0, 1))]
    expected = [Outcome.STALE, Outcome.FENCED, Outcome.COMMITTED]
    assert running.store.commit("v1", events) == expected
    assert running.store.commit("v1", []) == []


def test_the_same_commit_again_counts_once(running: Bench) -> None:
    event = tokens_event(0, 5, 6)
    for _ in range(2):
        assert running.store.commit("v1", [("r1", event)]) == [Outcome.COMMITTED]
    assert running.store.snapshot("r1").tokens == (5, 6)
    other = replace(event, tokens=(5, 9))
    assert running.store.commit("v1", [("r1", other)]) == [Outcome.STALE]


def test_the_last_commit_again_is_no_failure(running: Bench) -> None:
    event = tokens_event(0, 5, finish=FinishReason.STOP)
    for _ in range(2):
        assert running.store.commit("v1", [("r1", event)]) == [Outcome.COMMITTED]
    assert running.store.events("r1", 0) == [event]


def test_a_commit_that_is_sent_ahead_keeps_its_text(running: Bench) -> None:
    event = Event(offset=0, tokens=(1,), finish_reason=FinishReason.ERROR, error="zu groß: 大きすぎる\r\n$1")
    assert running.store.commit_later("v1", [("r1", event)], "verify:v1").read().outcomes == [Outcome.COMMITTED]
    assert running.store.events("r1", 0) == [event]
    assert running.store.snapshot("r1").error == event.error


def test_an_earlier_owner_cannot_commit(running: Bench) -> None:
    running.bury("v1")
    running.store.assign("r1", "v2")
    running.revive("v1")  # a frozen process wakes up
    assert running.store.commit("v1", [("r1", tokens_event(0, 1))]) == [Outcome.FENCED]
    assert running.store.snapshot("r1").tokens == ()


def test_an_event_that_commits_nothing_is_refused(running: Bench) -> None:
    with pytest.raises(ValueError):
        running.store.commit("v1", [("r1", Event(offset=0))])


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        (FinishReason.STOP, Status.DONE),
        (FinishReason.LENGTH, Status.DONE),
        (FinishReason.CANCELLED, Status.CANCELLED),
        (FinishReason.ERROR, Status.FAILED),
    ],
)
def test_a_finish_reason_ends_the_request(running: Bench, reason: FinishReason, status: Status) -> None:
    before_s = time.time()
    running.store.commit("v1", [("r1", tokens_event(0, 5, finish=reason))])
    found = running.store.snapshot("r1")
    assert (found.status, found.finish_reason, found.tokens) == (status, reason, (5,))
    assert found.ended_s is not None
    assert before_s - 0.1 <= found.ended_s <= time.time() + 0.1
    assert (running.store.active(), running.store.owned("v1"), running.store.orphans()) == (0, set(), [])
    assert not running.store.assign("r1", "v1")
    assert not running.store.end("r1", FinishReason.CANCELLED)
    assert running.store.commit("v1", [("r1", tokens_event(1, 6))]) == [Outcome.ENDED]


def test_any_process_may_end_a_request_once(running: Bench) -> None:
    running.store.commit("v1", [("r1", tokens_event(0, 5, 6))])
    assert running.store.end("r1", FinishReason.ERROR, 'three "strikes"\n')
    assert not running.store.end("r1", FinishReason.CANCELLED)
    found = running.store.snapshot("r1")
    assert (found.status, found.error, found.tokens) == (Status.FAILED, 'three "strikes"\n', (5, 6))
    last = running.store.events("r1", 0)[-1]
    assert (last.offset, last.tokens, last.finish_reason) == (2, (), FinishReason.ERROR)
    assert (last.error, last.stats) == ('three "strikes"\n', tokens_event(0).stats)
    assert running.store.commit("v1", [("r1", tokens_event(2, 7))]) == [Outcome.ENDED]
    assert (running.store.active(), running.store.owned("v1")) == (0, set())

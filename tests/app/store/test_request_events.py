"""Events, settling, times to live, round trips: both stores where the promise is of both."""

import threading
import time
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.errors import NotFound
from app.messages import FinishReason
from app.request import TokenLogprobs
from app.store.protocol import Outcome, past
from tests.app.store.bench import NAMESPACE, Bench, make_record, redis_bench, tokens_event


def test_a_request_may_end_before_its_first_token(bench: Bench) -> None:
    bench.store.create(make_record(), limit=10)
    assert bench.store.end("r1", FinishReason.CANCELLED)
    assert [event.finish_reason for event in bench.store.events("r1", 0)] == [FinishReason.CANCELLED]


@pytest.mark.parametrize("ends_with_tokens", [True, False])
def test_events_start_exactly_at_any_offset(running: Bench, ends_with_tokens: bool) -> None:
    last = FinishReason.STOP if ends_with_tokens else None
    events = [tokens_event(0, 1, 2, 3), tokens_event(3, 4), tokens_event(4, 5, 6, finish=last)]
    running.store.commit("v1", [("r1", event) for event in events])
    if not ends_with_tokens:
        running.store.end("r1", FinishReason.STOP)
    for offset in range(7):
        found = running.store.events("r1", offset)
        assert found[0].offset == offset
        assert tuple(token for event in found for token in event.tokens) == (1, 2, 3, 4, 5, 6)[offset:]
        assert all(len(event.proposers) == len(event.tokens) for event in found)
        assert [event.finish_reason for event in found if event.finish_reason] == [FinishReason.STOP]
        assert found[-1].finish_reason == FinishReason.STOP


def test_log_probabilities_stay_with_their_tokens(running: Bench) -> None:
    kept = [TokenLogprobs(logprob=-0.5 * i, top=((i, -0.25),)) for i in range(6)]
    for start, end in ((0, 3), (3, 4), (4, 6)):
        event = replace(tokens_event(start, *range(start, end)), logprobs=tuple(kept[start:end]))
        assert running.store.commit("v1", [("r1", event)]) == [Outcome.COMMITTED]
    assert list(running.store.snapshot("r1").logprobs) == kept
    for offset in range(6):
        assert [one for event in running.store.events("r1", offset) for one in event.logprobs] == kept[offset:]


def test_a_reader_that_waits_for_the_end_wakes_at_the_end(running: Bench) -> None:
    assert not running.store.ended("r1", 0.05)
    woken: list[tuple[bool, float]] = []

    def wait() -> None:
        started = time.monotonic()
        woken.append((running.store.ended("r1", 20.0), time.monotonic() - started))

    waiting = [threading.Thread(target=wait) for _ in range(3)]
    for thread in waiting:
        thread.start()
    time.sleep(0.1)
    running.store.commit("v1", [("r1", tokens_event(0, 1, finish=FinishReason.STOP))])
    for thread in waiting:
        thread.join()
    assert [ended for ended, _ in woken] == [True] * 3
    assert max(seconds for _, seconds in woken) < 10.0, "half of the time that they would wait"
    assert running.store.ended("r1")
    with pytest.raises(NotFound):
        running.store.ended("unknown")


def test_a_task_is_settled_by_one_claimant_and_once(bench: Bench) -> None:
    bench.store.create(make_record("r1"), limit=10, task='{"id": "t"}')
    bench.store.create(make_record("r2"), limit=10)
    assert bench.store.unsettled() == ["r1"]
    assert (bench.store.task("r1"), bench.store.task("r2")) == ('{"id": "t"}', None)
    for request_id in ("r1", "r2"):
        bench.store.end(request_id, FinishReason.CANCELLED)
    assert bench.store.unsettled() == ["r1"]
    assert bench.store.claim_settle("r1", 0.05)
    assert not bench.store.claim_settle("r1", 0.05)
    time.sleep(0.1)
    assert bench.store.claim_settle("r1", 10.0)
    bench.store.settled("r1")
    assert bench.store.unsettled() == []
    assert not bench.store.claim_settle("r1", 10.0)
    assert not bench.store.claim_settle("r2", 10.0)


def test_an_ended_request_is_forgotten_after_its_time(short_lived: Bench) -> None:
    short_lived.store.create(make_record(), limit=10, task="{}")
    short_lived.store.assign("r1", "v1")
    short_lived.store.commit("v1", [("r1", tokens_event(0, 1, finish=FinishReason.STOP))])
    assert short_lived.store.snapshot("r1").tokens == (1,)
    time.sleep(0.2)
    with pytest.raises(NotFound):
        short_lived.store.snapshot("r1")
    with pytest.raises(NotFound):
        short_lived.store.events("r1", 0)
    assert short_lived.store.unsettled() == []
    assert short_lived.store.create(make_record(), limit=1)


def test_a_request_never_ended_frees_its_place(short_lived: Bench) -> None:
    short_lived.store.create(make_record(), limit=1)
    short_lived.store.assign("r1", "v1")
    short_lived.store.commit("v1", [("r1", tokens_event(0, 1))])
    time.sleep(0.35)
    assert (short_lived.store.active(), short_lived.store.owned("v1")) == (0, set())
    assert short_lived.store.orphans() == []
    assert short_lived.store.create(make_record("r2"), limit=1)


def test_every_key_has_a_time_to_live_or_dies_empty(redis_client: redis.Redis) -> None:
    bench = redis_bench(redis_client)
    bench.revive("v1")
    for request_id in ("r1", "r2"):
        bench.store.create(make_record(request_id), limit=10, task="{}")
        bench.store.assign(request_id, "v1")
        bench.store.commit("v1", [(request_id, tokens_event(0, 1))])
    bounded = {f"{NAMESPACE}:{name}" for name in ("active", "unsettled", "nodes")}
    for key in redis_client.keys("*"):
        assert key in bounded or redis_client.pttl(key) > 0, key
    for request_id in ("r1", "r2"):
        bench.store.end(request_id, FinishReason.CANCELLED)
        bench.store.settled(request_id)
        assert redis_client.pttl(f"{NAMESPACE}:events:{request_id}") <= 60_000
    bench.bury("v1")
    assert {str(key).split(":")[1] for key in redis_client.keys("*")} == {"request", "events", "ended"}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows by one item for each sending to Redis."""
    sent: list[int] = []
    send = redis.Connection.send_packed_command

    def count(self: redis.Connection, *args: Any, **options: Any) -> None:
        sent.append(1)
        send(self, *args, **options)  # type: ignore[no-untyped-call]

    monkeypatch.setattr(redis.Connection, "send_packed_command", count)
    return sent


def test_sixteen_commits_are_one_round_trip(redis_client: redis.Redis, sent: list[int]) -> None:
    bench = redis_bench(redis_client)
    for number in range(16):
        bench.store.create(make_record(f"r{number}"), limit=16)
        bench.store.assign(f"r{number}", "v1")
    events = [(f"r{number}", tokens_event(0, 1, 2)) for number in range(16)]
    redis_client.script_flush()
    sent.clear()
    assert bench.store.commit("v1", events) == [Outcome.COMMITTED] * 16  # the server forgot the script
    assert len(sent) > 1
    sent.clear()
    again = [(request_id, tokens_event(2, 3)) for request_id, _ in events]
    assert bench.store.commit("v1", again) == [Outcome.COMMITTED] * 16
    assert len(sent) == 1


@given(st.lists(st.integers(1, 4), max_size=6), st.integers(0, 24))
def test_events_past_an_offset_are_the_rest_of_the_tokens(sizes: list[int], offset: int) -> None:
    events, length = [], 0
    for size in sizes:
        events.append(tokens_event(length, *range(length, length + size)))
        length += size
    rest = past(events, offset)
    assert [token for event in rest for token in event.tokens] == list(range(length))[offset:]
    assert all(event.tokens == tuple(range(event.offset, event.offset + len(event.tokens))) for event in rest)

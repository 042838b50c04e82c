"""Timelines and samples in the store: bounded, merged, and without a way back to a request's text."""

import json

import pytest
import redis

from app.store.history import MOST, History
from app.store.traces import MOST_SPANS, Trace, Traces, TraceSpan, trace_name


@pytest.fixture
def traces(redis_client: redis.Redis) -> Traces:
    return Traces(redis_client, "test", most=3)


def span(start_s: float, kind: str = "verify") -> TraceSpan:
    return TraceSpan(start_s, start_s + 0.5, kind, f"{kind}-1", 2)


def test_two_processes_add_to_one_timeline(traces: Traces) -> None:
    traces.add([Trace("a", {"tokens": "3", "created_s": "1.5"}, [span(1.0), span(2.0)])])
    traces.add([Trace("a", {}, [span(1.5, "draft")])])
    traces.add([Trace("a", {"tokens": "5"}, [])])
    assert traces.spans("a") == [span(1.0), span(2.0), span(1.5, "draft")]
    assert traces.recent(9) == {"a": {"tokens": "5", "created_s": "1.5"}}


def test_the_timeline_longest_without_additions_makes_room(
    traces: Traces, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i, name in enumerate("abcad"):
        monkeypatch.setattr("app.store.traces.time.time", lambda now=i: 1000.0 + now)
        traces.add([Trace(name, {"tokens": "1"}, [span(float(i))])])
    assert list(traces.recent(9)) == ["d", "a", "c"]
    assert traces.spans("b") == [] and not redis_client.exists("test:about:b")


def test_a_timeline_forgets_its_beginning_and_everything_dies(traces: Traces, redis_client: redis.Redis) -> None:
    traces.add([Trace("a", {"tokens": "1"}, [span(float(i)) for i in range(MOST_SPANS + 7)])])
    kept = traces.spans("a")
    assert len(kept) == MOST_SPANS and kept[0].start_s == 7.0
    assert all(redis_client.pttl(key) > 0 for key in redis_client.keys("test:*"))


def test_a_name_does_not_tell_the_request() -> None:
    assert trace_name("17b310399b0149b394b7b0a4fdeabc7b") == trace_name("17b310399b0149b394b7b0a4fdeabc7b")
    assert trace_name("17b3") not in "17b310399b0149b394b7b0a4fdeabc7b" and trace_name("a") != trace_name("b")


def test_samples_are_bounded_and_the_latest_ones_come(redis_client: redis.Redis) -> None:
    samples = History(redis_client, "test")
    redis_client.rpush("test:samples", *(json.dumps({"at_s": i}) for i in range(MOST)))
    samples.add({"at_s": MOST})
    assert [one["at_s"] for one in samples.last(2)] == [MOST - 1, MOST]
    assert redis_client.llen("test:samples") == MOST and redis_client.pttl("test:samples") > 0

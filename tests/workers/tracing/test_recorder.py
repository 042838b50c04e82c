"""Test that a process writes its spans of work to the timelines of its requests."""

import pytest

from app.errors import StoreUnavailable
from app.store.traces import TraceSpan, trace_name
from workers.deployment import Deployment
from workers.heartbeat import Heartbeat
from workers.tracing.timelines import MOST_OF_BATCH


def spans(deployment: Deployment, request_id: str) -> list[TraceSpan]:
    return deployment.traces.spans(trace_name(request_id))


def work(heartbeat: Heartbeat, *request_ids: str) -> None:
    heartbeat.begin_work()
    heartbeat.working_on(request_ids)
    heartbeat.end_work()


def test_a_span_names_worker_times_and_number_of_sequences(lone_deployment: Deployment) -> None:
    heartbeat = Heartbeat(lone_deployment, "verify", "verify-1")
    work(heartbeat, "a", "b", "c")
    work(heartbeat)
    work(heartbeat, "a")
    heartbeat.recorder.flush({})
    first, second = spans(lone_deployment, "a")
    assert (first.node, first.kind, first.sequences) == ("verify-1", "verify", 3)
    assert first.start_s <= first.end_s <= second.start_s
    assert second.sequences == 1, "the requests of one batch are not those of the next"
    assert len(spans(lone_deployment, "b")) == 1


def test_each_span_is_written_once(lone_deployment: Deployment) -> None:
    heartbeat = Heartbeat(lone_deployment, "draft", "draft-1")
    for _ in range(3):
        work(heartbeat, "a")
        heartbeat.recorder.flush({})
        heartbeat.recorder.flush({})
    assert len(spans(lone_deployment, "a")) == 3


def test_a_heartbeat_writes_its_spans_by_its_end(lone_deployment: Deployment) -> None:
    heartbeat = Heartbeat(lone_deployment, "verify", "v")
    heartbeat.begin()
    work(heartbeat, "a", "b")
    heartbeat.end()
    assert [(span.node, span.sequences) for span in spans(lone_deployment, "a")] == [("v", 2)]


def test_of_a_large_batch_two_processes_trace_the_same_requests(lone_deployment: Deployment) -> None:
    ids = [f"request-{i}" for i in range(3 * MOST_OF_BATCH)]
    for kind in ("verify", "draft"):
        heartbeat = Heartbeat(lone_deployment, kind, f"{kind}-1")
        work(heartbeat, *ids)
        heartbeat.recorder.flush({})
    found = [{span.kind for span in spans(lone_deployment, request_id)} for request_id in ids]
    assert found.count({"verify", "draft"}) == MOST_OF_BATCH and found.count(set()) == 2 * MOST_OF_BATCH


def test_a_redis_that_is_away_ends_no_process(lone_deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    heartbeat = Heartbeat(lone_deployment, "verify", "v")
    work(heartbeat, "a")

    def away(traces: object) -> None:
        raise StoreUnavailable("Redis does not answer")

    monkeypatch.setattr(lone_deployment.traces, "add", away)
    heartbeat.recorder.close()

"""Test that a collector for OpenTelemetry gets one trace of a request that several processes worked on."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from kombu import pools

from app.config import Settings
from app.engine.text.tokenizer import Tokenizer
from app.errors import InvalidSettings
from app.messages import FinishReason, Stats
from app.request import GenerateRequest
from app.verifier.metrics import RequestProgress
from tests.models import byte_fallback_tokenizer
from tests.workers.collector import Span, collecting
from tests.workers.conftest import with_settings
from workers.celery_app import make_celery
from workers.deployment import Deployment
from workers.heartbeat import Heartbeat
from workers.tracing.otlp import PATIENCE_S, Collector, is_traced


@pytest.fixture
def collector() -> Iterator[tuple[str, list[Span]]]:
    with collecting() as found:
        yield found


@pytest.fixture
def deployment(
    redis_client: redis.Redis, redis_url: str, tmp_path: Path, collector: tuple[str, list[Span]]
) -> Iterator[Deployment]:
    """Open a deployment whose only other process is the collector."""
    settings = Settings(redis_url=redis_url, lease_s=0.4, otlp_url=collector[0])
    deployment = Deployment(settings, make_celery(settings), Tokenizer(byte_fallback_tokenizer(tmp_path)))
    yield deployment
    deployment.close()
    pools.reset()


def _work(heartbeat: Heartbeat, *request_ids: str) -> None:
    heartbeat.begin_work()
    heartbeat.working_on(request_ids)
    time.sleep(0.01)
    heartbeat.end_work()


def test_unconnected_processes_make_one_trace_for_each_request(
    deployment: Deployment, collector: tuple[str, list[Span]]
) -> None:
    progress: dict[str, RequestProgress] = {}
    verify = Heartbeat(deployment, "verify", "verify-1", progress=lambda: progress)
    draft, web = (Heartbeat(deployment, kind, f"{kind}-1") for kind in ("draft", "web"))
    request = GenerateRequest(prompt="Hello", raw=True, max_tokens=3)
    one, other = (deployment.submit(request) for _ in range(2))
    began_s = time.time()
    _work(verify, one.id, other.id)
    _work(draft, one.id)
    _work(draft)
    time.sleep(0.01)
    _work(verify, one.id)
    stats = Stats(rounds=2, drafted=5, accepted=1, first_token_s=began_s, last_token_s=time.time())
    ended = RequestProgress(one, began_s, tokens=3, stats=stats, reason=FinishReason.LENGTH)
    progress |= {one.id: ended, other.id: RequestProgress(other, began_s)}
    for heartbeat in (web, verify, draft):  # the web process submits
        heartbeat.end()

    spans = sorted((span for span in collector[1]), key=lambda span: span["start_s"])
    assert {span["service"] for span in spans} == {"paceline"}
    (root,) = [span for span in spans if span["name"] == "request"]
    whole = [span for span in spans if span["trace"] == root["trace"] and span is not root]
    assert root["parent"] == "" and {span["parent"] for span in whole} == {root["id"]}
    assert [(span["node"], span["name"]) for span in whole] == [
        ("web-1", "admit"),
        ("verify-1", "wait"),
        ("verify-1", "verify"),
        ("verify-1", "wait"),
        ("draft-1", "draft"),
        ("verify-1", "verify"),
    ]
    assert [span["paceline.round"] for span in whole if span["name"] == "verify"] == [1, 2]
    assert [span["paceline.batch.sequences"] for span in whole if span["name"] == "verify"] == [2, 1]
    assert (root["paceline.tokens"], root["paceline.finish_reason"], root["paceline.accepted"]) == (3, "length", 1)
    named = {name.removeprefix("gen_ai."): value for name, value in root.items() if name.startswith("gen_ai.")}
    assert (named["operation.name"], named["request.model"]) == ("text_completion", "smollm2-135m")
    assert (named["usage.input_tokens"], named["usage.output_tokens"]) == (len(one.prompt_ids), 3)
    assert (named["request.temperature"], named["response.finish_reasons"]) == (0.0, ["length"])
    drafted = whole[4]
    assert root["start_s"] <= whole[1]["start_s"] < whole[1]["end_s"] <= whole[2]["end_s"] <= drafted["start_s"]
    assert drafted["end_s"] <= whole[5]["start_s"] and 0.01 <= drafted["end_s"] - drafted["start_s"] < 5.0
    assert abs(whole[5]["end_s"] - root["end_s"]) < 5.0
    rest = [span["name"] for span in spans if span["trace"] != root["trace"]]
    assert sorted(rest) == ["admit", "verify", "wait"]  # the other request goes on


def test_part_of_the_requests_is_the_same_in_every_process(
    deployment: Deployment, collector: tuple[str, list[Span]]
) -> None:
    ids = [f"request-{i}" for i in range(400)]
    chosen = [request_id for request_id in ids if is_traced(request_id, 0.25)]
    assert 60 < len(chosen) < 140 and not any(is_traced(request_id, 0.0) for request_id in ids)
    assert set(chosen) <= {request_id for request_id in ids if is_traced(request_id, 0.5)}
    heartbeat = Heartbeat(with_settings(deployment, otlp_part=0.25), "fuse", "fuse-1")
    _work(heartbeat, *ids)
    heartbeat.end()
    assert len({span["trace"] for span in collector[1]}) == len(chosen)


def test_an_unset_or_unreachable_collector_delays_nothing(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = Heartbeat(with_settings(deployment, otlp_url=None), "draft", "draft-1")
    assert not [sink for sink in without.recorder.sinks if isinstance(sink, Collector)]
    nowhere = with_settings(deployment, otlp_url="http://127.0.0.1:9")
    heartbeat = Heartbeat(nowhere, "draft", "draft-1")
    flushes_s = []
    for _ in range(3):  # a busy machine may hold one of them up
        _work(heartbeat, "a request")
        started = time.monotonic()
        heartbeat.recorder.flush({})
        flushes_s.append(time.monotonic() - started)
    assert min(flushes_s) < PATIENCE_S / 4
    started = time.monotonic()
    heartbeat.end()
    assert time.monotonic() - started < 5 * PATIENCE_S
    monkeypatch.setitem(sys.modules, "workers.tracing.otlp", None)
    with pytest.raises(InvalidSettings, match="requirements-tracing.txt"):
        Heartbeat(nowhere, "draft", "draft-2")

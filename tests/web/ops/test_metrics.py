"""Test GET /metrics as Prometheus reads it, over a real Redis: sums of all processes, present state."""

import re

import pytest
import redis
from flask.testing import FlaskClient
from prometheus_client.parser import text_string_to_metric_families

from app.config import ROOT
from app.counters import Counters
from app.errors import StoreUnavailable
from app.messages import TARGET
from app.metrics import (
    ACCEPTED_LENGTH,
    DRAFTED,
    DRAFTED_AT_LOAD,
    METRICS,
    PREFIX,
    ROUNDS_DRAFTED,
    STEP,
    TOKENS,
)
from app.store.shared_stats import StatsExchange
from tests.web.conftest import Deploy
from web.factory import create_app
from workers.deployment import Deployment

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scraped(client: FlaskClient) -> Samples:
    text = client.get("/metrics").get_data(as_text=True)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_counters_and_histograms_sum_all_processes(deployment: Deployment, client: FlaskClient) -> None:
    for times in (1, 2):
        counters = Counters()
        counters.count(TOKENS, 'a "quoted"\nname', by=times)
        counters.count(DRAFTED, "lookup", "2", by=10 * times)
        for length in (1, 3, 99):
            counters.observe(ACCEPTED_LENGTH, length)
        StatsExchange(counters, deployment.shared_stats).close()
    found = scraped(client)
    assert found["paceline_tokens_committed_total", (("proposer", 'a "quoted"\nname'),)] == 3
    assert found["paceline_draft_tokens_verified_total", (("drafter", "lookup"), ("position", "2"))] == 30
    name = "paceline_accepted_length_tokens"
    assert found[f"{name}_count", ()] == 6 and found[f"{name}_sum", ()] == 206
    assert [found[f"{name}_bucket", (("le", bound),)] for bound in ("1.0", "2.0", "3.0", "16.0", "+Inf")] == [
        2,
        2,
        4,
        4,
        6,
    ]


def test_speculation_is_counted_under_vllms_names_too(deployment: Deployment, client: FlaskClient) -> None:
    counters = Counters()
    counters.count(TOKENS, TARGET, by=7)
    counters.count(TOKENS, "lookup", by=5)
    counters.count(ROUNDS_DRAFTED, by=4)
    counters.count(DRAFTED_AT_LOAD, "1", by=20)
    StatsExchange(counters, deployment.shared_stats).close()
    found, model = scraped(client), (("model_name", deployment.settings.model_name),)
    counted = {"generation_tokens": 12, "spec_decode_num_drafts": 4, "spec_decode_num_draft_tokens": 20}
    for name, value in {**counted, "spec_decode_num_accepted_tokens": 5}.items():
        assert found[f"vllm:{name}_total", model] == value
    assert found["vllm:num_requests_running", model] == found["vllm:kv_cache_usage_perc", model] == 0


def test_uncounted_metrics_are_zero_not_absent(client: FlaskClient) -> None:
    found = scraped(client)
    for metric in METRICS.values():
        for value in metric.values:
            assert found[f"{PREFIX}{metric.name}_total", ((metric.labels[0], value),)] == 0
        if not metric.labels:
            assert found[f"{PREFIX}{metric.name}_{'count' if metric.buckets else 'total'}", ()] == 0


def test_sums_of_another_version_are_left_out(deployment: Deployment, client: FlaskClient) -> None:
    deployment.shared_stats.merge(
        "metrics", "w", 1, {'["step_seconds"]': ([1.0], [1.0]), '["tokens_committed"]': ([1.0], [5.0])}
    )
    deployment.shared_stats.merge("metrics", "w", 2, {"not ours": ([1.0], [1.0]), '["unknown", "x"]': ([1.0], [1.0])})
    found = scraped(client)
    assert found[f"{PREFIX}{STEP.name}_count", ()] == 0
    assert not any(name == "paceline_tokens_committed_total" for name, _ in found)


def test_gauges_show_the_present_state(deployment: Deployment, client: FlaskClient) -> None:
    info = {"sequences": 2, "cache_tokens": 1000, "cache_tokens_free": 400}
    deployment.nodes.beat("verify", "v", "o1", progress_s=1.0, info=info)
    deployment.nodes.beat("fuse", "f", "o2", progress_s=1.0, info={})
    deployment.mailboxes.post("verify:v", ["{}", "{}"])
    deployment.mailboxes.post("fuse", ["{}"])
    deployment.waiting.put("{}")
    found = scraped(client)
    depths = {dict(labels)["stage"]: value for (name, labels), value in found.items() if name.endswith("queue_depth")}
    assert depths == {"start": 0, "room": 1, "draft": 0, "verify": 2, "fuse": 1, "settle": 0}
    assert found["paceline_kv_free_tokens", (("node", "v"),)] == 400
    assert found["paceline_sequences_running", ()] == 2
    assert found["paceline_policy", (("field", "max_draft_tokens"),)] == 8
    missing = {
        dict(labels)["missing"] for (name, labels), value in found.items() if name.endswith("degraded") and value
    }
    assert missing == {"web", "control", "draft", "beat"}


def test_drafters_are_not_missed_if_the_settings_have_none(deploy: Deploy) -> None:
    client = create_app(deploy(drafters=())).test_client()
    assert scraped(client)["paceline_degraded", (("missing", "draft"),)] == 0


def test_without_redis_metrics_are_redis_up_alone(
    deployment: Deployment, client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(kind: str | None = None) -> None:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(deployment.nodes, "live", silent)
    assert scraped(client) == {("paceline_redis_up", ()): 0.0}


def test_every_metric_is_documented(client: FlaskClient, redis_client: redis.Redis) -> None:
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"^# HELP ([\w:]+)", client.get("/metrics").get_data(as_text=True), re.MULTILINE))
    shown = {name.removesuffix("_total") for name in shown}
    documented = {name.removesuffix("_total") for name in re.findall(r"`((?:paceline_|vllm:)\w+)`", text)}
    assert shown == documented

"""Serve GET /metrics: the deployment's counters and present state as Prometheus' text.

All web processes serve the same. Without the store there is one gauge, `redis_up`, at zero.
"""

import logging
from collections.abc import Iterable, Iterator
from typing import Any

from flask import Blueprint, Response, request
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from app.errors import StoreUnavailable
from app.messages import TARGET
from app.metrics import DRAFTED_AT_LOAD, METRICS, PREFIX, PROMPT_TOKENS, ROUNDS_DRAFTED, TOKENS, Metric
from web.ops.deployment_state import KINDS, DeploymentState, read_state, running
from workers.deployment import Deployment

log = logging.getLogger(__name__)
Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
KV_FIELDS = ("cache_tokens", "cache_tokens_free")
AHEAD = ("ahead_hits", "ahead_misses")


def blueprint(deployment: Deployment) -> Blueprint:
    routes = Blueprint("metrics", __name__)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Deployment(deployment))

    @routes.get("/metrics")
    def metrics() -> Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return Response(encode(registry), content_type=content_type, headers={"Cache-Control": "no-store"})

    return routes


class _Deployment(Collector):
    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment

    def collect(self) -> Iterator[Family]:
        try:
            state = read_state(self._deployment)
        except StoreUnavailable as error:
            log.warning("%s", error)
            yield _gauge("redis_up", "1 if Redis answers.", [((), 0.0)])
            return
        yield _gauge("redis_up", "1 if Redis answers.", [((), 1.0)])
        yield from _counted(state)
        yield from _gauges(state)
        yield from _of_verifiers(state)
        yield from _of_drafters(state)
        yield from _under_vllms_names(state, self._deployment.settings.model_name)


def _counted(state: DeploymentState) -> Iterator[Family]:
    """Include metrics never counted: an alert needs the zero."""
    found: dict[str, dict[tuple[str, ...], list[float]]] = {}
    for (name, labels), sums in state.sums.items():
        found.setdefault(name, {})[labels] = sums
    for metric in METRICS.values():
        own = found.get(metric.name, {})
        fitting = {labels: sums for labels, sums in sorted(own.items()) if _fits(metric, labels, sums)}
        for labels in [(value,) for value in metric.values] if metric.labels else [()]:
            fitting.setdefault(labels, [0.0] * metric.size)
        yield _histogram(metric, fitting) if metric.buckets else _counter(metric, fitting)


def _fits(metric: Metric, labels: tuple[str, ...], sums: list[float]) -> bool:
    """False for another version's sums."""
    return len(labels) == len(metric.labels) and len(sums) == metric.size


def _counter(metric: Metric, found: dict[tuple[str, ...], list[float]]) -> Family:
    family = CounterMetricFamily(PREFIX + metric.name, metric.help, labels=metric.labels)
    for labels, sums in found.items():
        family.add_metric(labels, sums[0])
    return family


def _histogram(metric: Metric, found: dict[tuple[str, ...], list[float]]) -> Family:
    family = HistogramMetricFamily(PREFIX + metric.name, metric.help, labels=metric.labels)
    bounds = [floatToGoString(bound) for bound in (*metric.buckets, float("inf"))]
    for labels, (*counts, total) in found.items():
        so_far = [sum(counts[: i + 1]) for i in range(len(counts))]
        family.add_metric(labels, [*zip(bounds, so_far, strict=True)], sum_value=total)
    return family


def _gauge(name: str, text: str, values: Iterable[tuple[tuple[str, ...], float]], *labels: str) -> Family:
    family = GaugeMetricFamily(PREFIX + name, text, labels=labels)
    for own, value in values:
        family.add_metric(own, value)
    return family


def _gauges(state: DeploymentState) -> Iterator[Family]:
    policy = {name: float(value) for name, value in state.policy.model_dump().items() if isinstance(value, int | float)}
    yield _gauge("requests_active", "Requests admitted and not ended.", [((), state.active)])
    yield _gauge("sequences_running", "Sequences that verifiers hold.", [((), running(state.nodes))])
    waiting = [((stage,), float(depth)) for stage, depth in state.depths.items()]
    text = "What waits: start (requests no verifier runs yet), room (tasks of a full deployment), a stage's mail."
    yield _gauge("queue_depth", text, waiting, "stage")
    alive = [((kind,), float(len(state.of(kind)))) for kind in KINDS]
    yield _gauge("nodes", "Live processes, by kind.", alive, "kind")
    lacking = [((kind,), float(kind in state.missing)) for kind in KINDS]
    yield _gauge("degraded", "1 if no process of a kind lives that should.", lacking, "missing")
    values = [((name,), value) for name, value in policy.items()]
    yield _gauge(
        "policy", "What the beat steers, by the policy's field; fields ending in _s are seconds.", values, "field"
    )


def _of_verifiers(state: DeploymentState) -> Iterator[Family]:
    nodes = state.of("verify")

    def each(field: str) -> list[tuple[tuple[str, ...], float]]:
        return [((node.name,), _number(node.info, field)) for node in nodes]

    yield _gauge("kv_capacity_tokens", "Tokens a verifier's KV cache can hold.", each("cache_tokens"), "node")
    free = each("cache_tokens_free")
    yield _gauge(
        "kv_free_tokens", "Tokens of the KV cache that no sequence holds; kept prefixes may lie there.", free, "node"
    )
    yield _gauge("verifier_sequences", "Sequences that a verifier holds.", each("sequences"), "node")


def _of_drafters(state: DeploymentState) -> Iterator[Family]:
    nodes = state.of("draft")
    ahead = [((node.name, field), _number(node.info, field)) for node in nodes for field in AHEAD]
    text = "Verdicts on what a node guessed ahead on, since it started, by whether it had guessed the outcome."
    yield _gauge("run_ahead_rounds", text, ahead, "node", "outcome")


def _under_vllms_names(state: DeploymentState, model: str) -> Iterator[Family]:
    """What planners and autoscalers read, as vLLM counts it; text of several drafters counts once."""

    capacity, free = (sum(_number(node.info, field) for node in state.of("verify")) for field in KV_FIELDS)
    now = {
        "num_requests_running": (running(state.nodes), "Sequences that verifiers hold."),
        "num_requests_waiting": (state.active - running(state.nodes), "Requests that no verifier holds."),
        "kv_cache_usage_perc": (1.0 - free / capacity if capacity else 0.0, "Used part of the KV cache, 0 to 1."),
    }
    for name, (value, text) in now.items():
        gauge = GaugeMetricFamily(f"vllm:{name}", text, labels=("model_name",))
        gauge.add_metric((model,), max(0.0, value))
        yield gauge
    tokens, own = state.total(TOKENS), state.by_label(TOKENS).get(TARGET, 0.0)
    so_far = {
        "prompt_tokens": (state.total(PROMPT_TOKENS), "Prompt tokens of requests that verifiers started."),
        "generation_tokens": (tokens, "Tokens committed."),
        "spec_decode_num_drafts": (state.total(ROUNDS_DRAFTED), "Rounds in which draft tokens were verified."),
        "spec_decode_num_draft_tokens": (state.total(DRAFTED_AT_LOAD), "Draft tokens verified."),
        "spec_decode_num_accepted_tokens": (tokens - own, "Of those, committed."),
    }
    for name, (value, text) in so_far.items():
        counter = CounterMetricFamily(f"vllm:{name}", text, labels=("model_name",))
        counter.add_metric((model,), value)
        yield counter


def _number(info: dict[str, Any], field: str) -> float:
    value = info.get(field, 0)
    return float(value) if isinstance(value, int | float) else 0.0

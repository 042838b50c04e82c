"""Sample the deployment's state into its history once a second, by one of the web processes, for the dashboard."""

import time
from typing import Any

from app.metrics import (
    ACCEPTED,
    ACCEPTED_LENGTH,
    BUSY,
    DRAFTED,
    ENDED,
    FIRST_TOKEN,
    PER_TOKEN,
    PROMPT_TOKENS,
    REUSED_TOKENS,
    STEP,
    TOKENS,
    Metric,
)
from web.ops.deployment_state import DeploymentState, read_state, running
from workers.deployment import Deployment
from workers.heartbeat import HeartbeatTask

EVERY_S = 1.0


class HistoryWriter(HeartbeatTask):
    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment

    def beat(self) -> None:
        """Add a sample unless another process has this second. Raises StoreUnavailable."""
        if self._deployment.nodes.try_lock("sample", EVERY_S * 0.9):
            self._deployment.history.add(sample(read_state(self._deployment), time.time()))


def sample(state: DeploymentState, now_s: float) -> dict[str, Any]:
    """Make a sample of the state, with counters as they are, so that any two samples give a rate."""
    return {
        "at_s": round(now_s, 3),
        "tokens": {labels[0]: sums[0] for labels, sums in _series(state, TOKENS)},
        "lengths": _histogram(state, ACCEPTED_LENGTH),
        "first_token": _histogram(state, FIRST_TOKEN),
        "per_token": _histogram(state, PER_TOKEN),
        "steps": [sum(_histogram(state, STEP)[:-1]), _histogram(state, STEP)[-1]],
        "drafted": state.total(DRAFTED.name),
        "accepted": state.total(ACCEPTED.name),
        "prompt": state.total(PROMPT_TOKENS.name),
        "reused": state.total(REUSED_TOKENS.name),
        "ended": state.total(ENDED.name),
        "busy": {labels[0]: round(sums[0], 3) for labels, sums in _series(state, BUSY)},
        "depths": dict(state.depths),
        "active": state.active,
        "running": running(state.nodes),
        "longest_draft": state.policy.max_draft_tokens,
    }


def _series(state: DeploymentState, metric: Metric) -> list[tuple[tuple[str, ...], list[float]]]:
    return sorted((labels, sums) for (name, labels), sums in state.sums.items() if name == metric.name)


def _histogram(state: DeploymentState, metric: Metric) -> list[float]:
    """Return one count a bucket, then the sum of all values, of a histogram without labels."""
    return state.sums.get((metric.name, ()), [0.0] * (len(metric.buckets) + 2))

"""Once a second one of the web processes notes how the deployment fares, so that a dashboard that opens has a past."""

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
from web.office_zz import Office
from web.ops.deployment_state import DeploymentState, read_state, running
from workers.heartbeat import HeartbeatTask

EVERY_S = 1.0


class HistoryWriter(HeartbeatTask):
    """Called from the heartbeat of a web process."""

    def __init__(self, deployment: Office) -> None:
        self._deployment = deployment

    def beat(self) -> None:
        """Add a sample unless another process just has. Raises StoreUnavailable."""
        if self._deployment.nodes.try_lock("sample", EVERY_S * 0.9):
            self._deployment.history.add(sample(read_state(self._deployment), time.time()))


def sample(moment: DeploymentState, now_s: float) -> dict[str, Any]:
    """What of a moment is worth a history: counters as they stand, so that any two samples give a rate."""
    return {
        "at_s": round(now_s, 3),
        "tokens": {labels[0]: sums[0] for labels, sums in _series(moment, TOKENS)},
        "lengths": _histogram(moment, ACCEPTED_LENGTH),
        "first_token": _histogram(moment, FIRST_TOKEN),
        "per_token": _histogram(moment, PER_TOKEN),
        "steps": [sum(_histogram(moment, STEP)[:-1]), _histogram(moment, STEP)[-1]],
        "drafted": moment.total(DRAFTED.name),
        "accepted": moment.total(ACCEPTED.name),
        "prompt": moment.total(PROMPT_TOKENS.name),
        "reused": moment.total(REUSED_TOKENS.name),
        "ended": moment.total(ENDED.name),
        "busy": {labels[0]: round(sums[0], 3) for labels, sums in _series(moment, BUSY)},
        "depths": dict(moment.depths),
        "active": moment.active,
        "running": running(moment.nodes),
        "longest_draft": moment.policy.max_draft_tokens,
    }


def _series(moment: DeploymentState, metric: Metric) -> list[tuple[tuple[str, ...], list[float]]]:
    return sorted((labels, sums) for (name, labels), sums in moment.sums.items() if name == metric.name)


def _histogram(moment: DeploymentState, metric: Metric) -> list[float]:
    """One count a bucket, then the sum of all values; of a histogram without labels."""
    return moment.sums.get((metric.name, ()), [0.0] * (len(metric.buckets) + 2))

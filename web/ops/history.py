"""Sample the deployment's state once a second, by one of the web processes, for the dashboard."""

import time
from typing import Any

from app.metrics import (
    ACCEPTED,
    ACCEPTED_LENGTH,
    BUSY,
    DRAFT_DEPTH,
    DRAFTED,
    ENDED,
    FIRST_TOKEN,
    PER_TOKEN,
    PROMPT_TOKENS,
    REUSED_TOKENS,
    ROUNDS_DRAFTED,
    STEP,
    TOKENS,
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
    """Counters are totals, so any two samples give a rate."""
    steps = state.histogram(STEP)
    return {
        "at_s": round(now_s, 3),
        "tokens": state.by_label(TOKENS),
        "lengths": state.histogram(ACCEPTED_LENGTH),
        "first_token": state.histogram(FIRST_TOKEN),
        "per_token": state.histogram(PER_TOKEN),
        "steps": [sum(steps[:-1]), steps[-1]],
        "drafted": state.total(DRAFTED),
        "depth": state.total(DRAFT_DEPTH),
        "rounds_drafted": state.total(ROUNDS_DRAFTED),
        "accepted": state.total(ACCEPTED),
        "prompt": state.total(PROMPT_TOKENS),
        "reused": state.total(REUSED_TOKENS),
        "ended": state.total(ENDED),
        "busy": {kind: round(busy_s, 3) for kind, busy_s in state.by_label(BUSY).items()},
        "depths": dict(state.depths),
        "active": state.active,
        "running": running(state.nodes),
        "longest_draft": state.policy.max_draft_tokens,
    }

"""Read the present state of the deployment, for metrics and dashboard."""

from collections.abc import Mapping
from dataclasses import dataclass

from app.counters import series
from app.messages import FUSE, SETTLE, mailbox_of
from app.metrics import GROUP, Metric
from app.policy import Policy
from app.store.protocol import Node
from workers.deployment import Deployment

KINDS = ("web", "control", "verify", "draft", "fuse", "beat")


@dataclass(frozen=True, slots=True)
class DeploymentState:
    """`sums`: of `app.metrics`, by name and label values."""

    sums: Mapping[tuple[str, tuple[str, ...]], list[float]]
    nodes: tuple[Node, ...]
    policy: Policy
    depths: Mapping[str, int]  # by stage: the mail, tasks or requests that wait for it
    active: int  # requests admitted and not ended
    missing: tuple[str, ...]  # kinds of processes that should run and do not

    def of(self, kind: str) -> list[Node]:
        return [node for node in self.nodes if node.kind == kind]

    def total(self, metric: Metric) -> float:
        return sum(sums[0] for (name, _), sums in self.sums.items() if name == metric.name)

    def by_label(self, metric: Metric) -> dict[str, float]:
        found = {labels: sums[0] for (name, labels), sums in self.sums.items() if name == metric.name}
        return {labels[0]: total for labels, total in sorted(found.items()) if len(labels) == 1}

    def histogram(self, metric: Metric) -> list[float]:
        """Return one count a bucket, then the sum of all values."""
        return self.sums.get((metric.name, ()), [0.0] * metric.size)


def read_state(deployment: Deployment) -> DeploymentState:
    nodes = tuple(sorted(deployment.nodes.live(), key=lambda node: (KINDS.index(node.kind), node.name)))
    active = deployment.requests.active()
    found = {series(name): sums for name, sums in deployment.shared_stats.load(GROUP).items()}
    return DeploymentState(
        sums={key: sums for key, sums in found.items() if key is not None},
        nodes=nodes,
        policy=deployment.nodes.policy(),
        depths=_depths(deployment, nodes, active),
        active=active,
        missing=_missing(deployment, nodes),
    )


def running(nodes: tuple[Node, ...]) -> int:
    return sum(int(node.info.get("sequences", 0)) for node in nodes if node.kind == "verify")


def _depths(deployment: Deployment, nodes: tuple[Node, ...], active: int) -> dict[str, int]:
    boxes = {FUSE: [FUSE], SETTLE: [SETTLE]}
    for kind in ("draft", "verify"):
        boxes[kind] = [mailbox_of(kind, node.name) for node in nodes if node.kind == kind]
    waiting = {stage: sum(map(deployment.mailboxes.waiting, own)) for stage, own in boxes.items()}
    # `start`: admitted requests that no verifier runs yet; `room`: tasks that wait for room
    return {"start": max(0, active - running(nodes)), "room": len(deployment.waiting), **waiting}


def _missing(deployment: Deployment, nodes: tuple[Node, ...]) -> tuple[str, ...]:
    alive = {node.kind for node in nodes}
    settings = deployment.settings
    has_drafters = bool(settings.drafters) and settings.plan.drafts
    wanted = [kind for kind in KINDS if kind != "draft" or has_drafters]
    return tuple(kind for kind in wanted if kind not in alive)

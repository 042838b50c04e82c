"""The verifier: owns its sequences' progress, steps on whatever is ready, never waits for a message it may not get."""

import logging
import os
import signal
import time
from collections.abc import Iterable, Mapping

from celery.worker import state as worker_state
from pydantic import ValidationError

from app.assembly.fuser import model_free_names
from app.assembly.local import build_verifier
from app.logs import of
from app.messages import FUSE, SETTLE, DraftJob, FinishReason, Settle, ToVerifier, mailbox_of
from app.stages.route.drafter_pool import DrafterPool
from app.stages.route.policies import hosts
from app.store.protocol import Node
from app.telemetry.verifier_metrics import VerifierMetrics
from app.verifier.dispatch import jobs_by_mailbox
from app.verifier.verifier import Verifier
from workers.deployment import Deployment
from workers.heartbeat import Heartbeat, HeartbeatTask
from workers.mailbox_consumer import consume_mailbox
from workers.service import RoleService

log = logging.getLogger(__name__)
RECONCILE_EVERY_S = 1.0


def serve(
    deployment: Deployment, node: str, verifier: Verifier | None = None, about: Mapping[str, object] | None = None
) -> RoleService:
    """Load the target, unless there is a `verifier`. `about`: what else the node tells of itself."""
    mailbox = mailbox_of("verify", node)
    verifier = verifier or build_verifier(deployment.settings, mailbox, deployment.requests)
    running = verifier.running
    running.metrics = metrics = VerifierMetrics(deployment.counters)

    def info() -> dict[str, object]:
        return {**running.report(), "host": deployment.machine, **(about or {})}

    verifier.exhausted = _leave
    heartbeat = Heartbeat(deployment, "verify", node, owner=verifier.owner, info=info, progress=metrics.drain)
    loop = VerifierLoop(deployment, verifier, heartbeat, mailbox)
    priors = deployment.exchange_stats(running.router.experience)
    tasks: list[HeartbeatTask] = [loop, priors, metrics, deployment.exchange_stats(deployment.counters)]
    doorbells = {mailbox: lambda: consume_mailbox(deployment, heartbeat, mailbox, ToVerifier, loop.handle)}
    return RoleService(heartbeat, doorbells, tasks)


def _leave() -> None:
    """A process that has met want of memory may never do well again (oneDNN keeps what failed): another takes over, and
    a request that brings one after the other down is found out as any such."""
    if worker_state.should_stop is None:
        log.critical("no memory for a step of one sequence; leaving")
        os.kill(os.getpid(), signal.SIGTERM)


class VerifierLoop(HeartbeatTask):
    """Mail in, one step, mail out."""

    def __init__(self, deployment: Deployment, verifier: Verifier, heartbeat: Heartbeat, mailbox: str) -> None:
        self._deployment = deployment
        self._verifier = verifier
        self._heartbeat = heartbeat
        self._mailbox = mailbox
        self._reconciled_s = 0.0
        self._resident = model_free_names(deployment.settings, deployment.tokenizer)

    def handle(self, messages: list[ToVerifier]) -> float | None:
        """Take the mail in, run one step, send the jobs for the next drafts out."""
        for message in messages:
            self._adopt(message.adopt)
            self._verifier.receive(message.trees)
        self._reconcile()
        jobs = self._verifier.step(time.time())
        self._heartbeat.working_on(work.sequence.id for work in self._verifier.stepped)
        self._send(jobs)
        self._settle()
        return self._verifier.wait_s(time.time())

    def beat(self) -> None:
        """From the heartbeat: who drafts, what the scheduler wants, and whether sequences wait with nobody at work."""
        live = self._deployment.nodes.live()
        self._verifier.running.pool = _pool(
            live, self._deployment.tokenizer.sha256, self._resident, self._deployment.machine
        )
        self._verifier.policy = self._deployment.nodes.policy()
        # Work must not hang on one message (design D10): the doorbell, or the mail that told of a new sequence, may
        # have been lost with a connection or a process. Mail of its own is rung for until somebody comes.
        if not self._heartbeat.attends(self._mailbox) and self._deployment.requests.owned(self._verifier.owner):
            self._deployment.post(self._mailbox, [ToVerifier()])

    def _adopt(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            try:
                self._verifier.adopt([request_id])
            except ValidationError:  # another version wrote it; it must not stop the others
                log.exception("it cannot be read", extra=of(request_id))
                self._deployment.requests.end(request_id, FinishReason.ERROR, "what is stored of it cannot be read")

    def _reconcile(self) -> None:
        """What the store says is ours counts, whatever mail was lost."""
        now = time.monotonic()
        if now - self._reconciled_s >= RECONCILE_EVERY_S:
            self._reconciled_s = now
            owned = self._deployment.requests.owned(self._verifier.owner)
            self._adopt(sorted(owned))
            self._verifier.release(set(self._verifier.running.sequences) - owned)

    def _send(self, jobs: list[DraftJob]) -> None:
        if jobs:
            self._deployment.post_all({mailbox: [message] for mailbox, message in jobs_by_mailbox(jobs, FUSE).items()})

    def _settle(self) -> None:
        ended, self._verifier.ended = self._verifier.ended, []
        self._deployment.post(SETTLE, [Settle(request_id=record.id) for record in ended if record.is_task])


def _pool(live: list[Node], tokenizer_sha256: str, resident: tuple[str, ...], here: str) -> DrafterPool:
    """The drafters alive; without a fusion task those of one node only, which fuses for itself."""
    nodes = [node for node in live if node.kind == "draft"]
    boxes = hosts(nodes, tokenizer_sha256)
    if not any(node.kind == FUSE for node in live):
        if not boxes:
            return DrafterPool()
        one = min(box for found in boxes.values() for box in found)
        boxes = {name: (one,) for name, found in boxes.items() if one in found}
    away = {mailbox_of(node.kind, node.name) for node in nodes if node.info.get("host") != here}
    return DrafterPool(
        models={name: found[0] for name, found in boxes.items()},
        model_free=resident,
        core_share=1.0 if len(away) < len(nodes) else 0.0,
        fuser=FUSE,
        readers=frozenset(name for node in nodes for name in node.info.get("readers", ())),
        hosts=boxes,
        waiting={mailbox_of(node.kind, node.name): int(node.info.get("waiting", 0)) for node in nodes},
        away=frozenset(away),
    )

"""The verifier: owns its sequences' progress, steps on whatever is ready, never waits for a message it may not get."""

import logging
import os
import signal
import time
from collections.abc import Iterable, Mapping

from celery.worker import state as worker_state
from pydantic import ValidationError

from app.assembly.fuser import resident_names
from app.assembly.local import verifying
from app.logs import of
from app.messages import FUSE, SETTLE, DraftJob, FinishReason, Settle, ToVerifier, mailbox_of
from app.stages.route.drafter_pool import Crew
from app.stages.route.policies import hosts
from app.store.protocol import Node
from app.telemetry.verifier_metrics import Metering
from app.verifier.dispatch import jobs_by_mailbox
from app.verifier.verifier import Verifying
from workers.deployment import Office
from workers.heartbeat import Pulse
from workers.mailbox_consumer import attend
from workers.service import Duty
from workers.sharing_zz import share

log = logging.getLogger(__name__)
RECONCILE_EVERY_S = 1.0


def serve(
    office: Office, node: str, verifier: Verifying | None = None, about: Mapping[str, object] | None = None
) -> Duty:
    """Load the target, unless there is a `verifier`. `about`: what else the node tells of itself."""
    mailbox = mailbox_of("verify", node)
    verifier = verifier or verifying(office.settings, mailbox, office.requests)
    running = verifier.running
    running.meter = meter = Metering(office.tally)

    def info() -> dict[str, object]:
        return {**running.report(), "host": office.machine, **(about or {})}

    verifier.exhausted = _leave
    pulse = Pulse(office, "verify", node, owner=verifier.owner, info=info)
    pulse.told = meter.told
    desk = Desk(office, verifier, pulse, mailbox)
    pulse.on_beat.append(desk.refresh)
    share(office, pulse, running.router.experience)

    return Duty(pulse, {mailbox: lambda: attend(office, pulse, mailbox, ToVerifier, desk.handle)})


def _leave() -> None:
    """A process that has met want of memory may never do well again (oneDNN keeps what failed): another takes over, and
    a request that brings one after the other down is found out as any such."""
    if worker_state.should_stop is None:
        log.critical("no memory for a step of one sequence; leaving")
        os.kill(os.getpid(), signal.SIGTERM)


class Desk:
    """Mail in, one step, mail out."""

    def __init__(self, office: Office, verifier: Verifying, pulse: Pulse, mailbox: str) -> None:
        self._office = office
        self._verifier = verifier
        self._pulse = pulse
        self._mailbox = mailbox
        self._reconciled_s = 0.0
        self._resident = resident_names(office.settings, office.tokenizer)

    def handle(self, messages: list[ToVerifier]) -> float | None:
        """Take the mail in, run one step, send the jobs for the next drafts out."""
        for message in messages:
            self._adopt(message.adopt)
            self._verifier.offer(message.trees)
        self._reconcile()
        self._pulse.works_on(len(self._verifier.running.sequences))
        jobs = self._verifier.step(time.time())
        self._pulse.about(work.sequence.record.id for work in self._verifier.stepped)
        self._send(jobs)
        self._settle()
        return self._verifier.wait_s(time.time())

    def refresh(self) -> None:
        """From the pulse: who drafts, what the scheduler wants, and whether sequences wait with nobody at work."""
        live = self._office.nodes.live()
        self._verifier.running.crew = _crew(live, self._office.tokenizer.sha256, self._resident, self._office.machine)
        self._verifier.policy = self._office.nodes.policy()
        # Work must not hang on one message (design D10): the doorbell, or the mail that told of a new sequence, may
        # have been lost with a connection or a process. Mail of its own is rung for until somebody comes.
        if not self._pulse.holds(self._mailbox) and self._office.requests.owned(self._verifier.owner):
            self._office.post(self._mailbox, [ToVerifier()])

    def _adopt(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            try:
                self._verifier.adopt([request_id])
            except ValidationError:  # another version wrote it; it must not stop the others
                log.exception("it cannot be read", extra=of(request_id))
                self._office.requests.end(request_id, FinishReason.ERROR, "what is stored of it cannot be read")

    def _reconcile(self) -> None:
        """What the store says is ours counts, whatever mail was lost."""
        now = time.monotonic()
        if now - self._reconciled_s >= RECONCILE_EVERY_S:
            self._reconciled_s = now
            owned = self._office.requests.owned(self._verifier.owner)
            self._adopt(sorted(owned))
            self._verifier.let_go(set(self._verifier.running.sequences) - owned)

    def _send(self, jobs: list[DraftJob]) -> None:
        if jobs:
            self._office.post_all({mailbox: [message] for mailbox, message in jobs_by_mailbox(jobs, FUSE).items()})

    def _settle(self) -> None:
        ended, self._verifier.ended = self._verifier.ended, []
        self._office.post(SETTLE, [Settle(request_id=record.id) for record in ended if record.is_task])


def _crew(live: list[Node], tokenizer_sha256: str, resident: tuple[str, ...], here: str) -> Crew:
    """The drafters alive; without a fusion task those of one node only, which fuses for itself."""
    nodes = [node for node in live if node.kind == "draft"]
    boxes = hosts(nodes, tokenizer_sha256)
    if not any(node.kind == FUSE for node in live):
        if not boxes:
            return Crew()
        one = min(box for found in boxes.values() for box in found)
        boxes = {name: (one,) for name, found in boxes.items() if one in found}
    away = {mailbox_of(node.kind, node.name) for node in nodes if node.info.get("host") != here}
    return Crew(
        remote={name: found[0] for name, found in boxes.items()},
        resident=resident,
        share=1.0 if len(away) < len(nodes) else 0.0,
        fuser=FUSE,
        readers=frozenset(name for node in nodes for name in node.info.get("readers", ())),
        hosts=boxes,
        waiting={mailbox_of(node.kind, node.name): int(node.info.get("waiting", 0)) for node in nodes},
        away=frozenset(away),
    )

"""Run a verifier: receive mail, step the ready sequences, send jobs; correct without any mail."""

import logging
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import inf

from celery.worker import state as worker_state
from pydantic import ValidationError

from app.assembly.devices import AnyRunner
from app.assembly.fuser import build_fuser, model_free_names
from app.assembly.verifier import Loaded, build_replay, build_verifier
from app.engine.cpu.runner import ModelRunner
from app.engine.profile.profile_cache import measure_again
from app.engine.weights.resolve import target_folder
from app.errors import MessageError
from app.fuser.fuser import Fuser
from app.logs import of
from app.messages import FUSE, SETTLE, DraftJob, FinishReason, Settle, ToVerifier, mailbox_of
from app.pipeline import draft_here, run_round
from app.placement.splits import Splits
from app.speculation.drafter_pool import DrafterPool
from app.speculation.jobs import jobs_by_mailbox
from app.verifier.metrics import VerifierMetrics
from app.verifier.verifier import Verifier
from workers.audit import Auditor
from workers.deployment import Deployment
from workers.heartbeat import Heartbeat, HeartbeatTask
from workers.mailbox_consumer import consume_mailbox
from workers.service import RoleService

log = logging.getLogger(__name__)
RECONCILE_EVERY_S = 1.0
IDLE_S = 1.0  # after the last request: shorter than `consume_mailbox` lingers
Measure = Callable[[Callable[[], bool]], bool]  # steps, while its argument is true; returns whether it is done


def serve(
    deployment: Deployment, node: str, verifier: Verifier, about: Mapping[str, object] | None = None
) -> RoleService:
    """`about`: facts that the node reports beside its own."""
    mailbox = mailbox_of("verify", node)
    metrics = verifier.stats.metrics
    fuser = build_fuser(deployment.settings, deployment.tokenizer, deployment.requests, verifier.sequences.tokens)
    plan = deployment.settings.plan
    identity = {
        "target": verifier.target_id,
        "tokenizer": deployment.tokenizer.sha256,
        "plan": plan.name,
        "replaced": [f"{name} {value}" for name, value in plan.changes().items()],  # parts of the plan
    }

    def info() -> dict[str, object]:
        return {**verifier.report(), **identity, "host": deployment.machine, **(about or {})}

    heartbeat = Heartbeat(deployment, "verify", node, owner=verifier.owner, info=info, progress=metrics.drain)
    loop = VerifierLoop(deployment, verifier, fuser, heartbeat, mailbox, _measuring(deployment, verifier))
    tasks: list[HeartbeatTask] = [loop, metrics, deployment.exchange_stats(deployment.counters)]

    def consume() -> None:
        consume_mailbox(deployment, heartbeat, mailbox, ToVerifier, loop.handle, verifier.has_mail)

    doorbells = {mailbox: consume}
    return RoleService(heartbeat, doorbells, tasks)


def load(
    deployment: Deployment,
    node: str,
    prepare_splits: Callable[[AnyRunner], Splits] | None = None,
    loaded: Loaded | None = None,
    owner: str | None = None,
) -> Verifier:
    """Out of memory, or with a target that runs no more steps, end the process."""
    return build_verifier(
        deployment.settings,
        mailbox_of("verify", node),
        deployment.requests,
        VerifierMetrics(deployment.counters),
        loaded or Loaded(deployment.tokenizer),
        on_lost=_leave,
        prepare_splits=prepare_splits,
        owner=owner,
    )


def _measuring(deployment: Deployment, verifier: Verifier) -> Measure | None:
    """Return what measures the step costs of a CPU, or looks whether the kept ones hold."""
    target, tokenizer, settings = verifier.target, deployment.tokenizer, deployment.settings
    if not isinstance(target, ModelRunner):
        return None
    about = (tokenizer.vocab_size, tokenizer.context_tokens, target_folder(settings), settings)
    return partial(measure_again, target, verifier.costs, *about)


def _leave(error: Exception) -> None:
    """End a process that lost its target, or ran out of memory: it may never recover (oneDNN keeps what failed)."""
    if worker_state.should_stop is None:
        log.critical("this process ends, since it cannot run a step of one sequence: %s", error)
        os.kill(os.getpid(), signal.SIGTERM)


class VerifierLoop(HeartbeatTask):
    def __init__(
        self,
        deployment: Deployment,
        verifier: Verifier,
        fuser: Fuser,
        heartbeat: Heartbeat,
        mailbox: str,
        measure: Measure | None = None,
    ) -> None:
        self._deployment = deployment
        self._verifier = verifier
        self._draft = partial(draft_here, fuser, mailbox)
        self._heartbeat = heartbeat
        self._mailbox = mailbox
        replay = partial(build_replay, deployment.settings, verifier, deployment.tokenizer)
        self._auditor = Auditor(deployment, mailbox, verifier.target_id, replay)
        self._has_busy_neighbour = False  # a verifier on the same cores
        self._reconciled_s = 0.0
        self._measure = measure
        self._idle_s = IDLE_S
        self._may_measure = False  # once drafters have started, which needs these cores, or a request has run
        self._worked_s = -inf  # the last time, monotonic
        self._model_free = model_free_names(deployment.settings, deployment.tokenizer)

    def handle(self, messages: list[ToVerifier]) -> float | None:
        """Return the seconds it can wait."""
        for message in messages:
            self._adopt(message.adopt)
            self._verifier.receive(message.trees)
            self._auditor.add(message.audit)
        self._reconcile()
        if self._verifier.sequences:
            self._auditor.give_way()
        run_round(self._verifier, self._draft, self._post, time.time)
        self._heartbeat.working_on(work.sequence.id for work in self._verifier.stepped)
        self._settle()
        self._measure_if_idle()
        wait_s = self._verifier.wait_s(time.time())
        return self._audit() if wait_s is None and self._auditor.has_work else wait_s

    def beat(self) -> None:
        """Follow drafters and policy; ring if sequences wait unattended. In the heartbeat's thread."""
        nodes, tokenizer = self._deployment.nodes, self._deployment.tokenizer.sha256
        live, machine = nodes.live(), self._deployment.machine
        here = [node.info for node in live if node.kind == "verify" and node.info.get("host") == machine]
        self._has_busy_neighbour = any(info.get("sequences") for info in here)
        pool = DrafterPool.of(live, tokenizer, self._model_free, machine, self._mailbox)
        self._verifier.follow(pool, nodes.policy())
        settings = self._deployment.settings
        are_drafters_up = bool(pool.models) or not (settings.drafters and settings.plan.drafts)
        self._may_measure |= are_drafters_up
        # Work must not depend on one message (design D10): the doorbell, or the mail with a new sequence, may have been
        # lost with a connection or a process. Its own empty mail rings until the mailbox is attended.
        if self._heartbeat.attends(self._mailbox):
            return
        is_look_due = self._measure is not None and are_drafters_up
        if is_look_due or self._deployment.requests.owned(self._verifier.owner):
            self._deployment.post(self._mailbox, [ToVerifier()])

    def _measure_if_idle(self) -> None:
        """Measure step costs, or look at them, once. A request interrupts it: what runs in between may need these
        cores, so the next try comes later.
        """
        now_s = time.monotonic()
        if self._verifier.sequences:
            self._worked_s, self._may_measure = now_s, True
        elif self._measure is None or not self._may_measure or self._has_busy_neighbour:
            return
        elif now_s - self._worked_s >= self._idle_s:
            self._idle_s *= 2.0
            try:
                if self._measure(self._is_left_alone):
                    self._measure = None
            finally:
                self._worked_s = time.monotonic()

    def _audit(self) -> float:
        """Run a step of an audit, unless requests run or ran here; return the seconds it can wait."""
        if time.monotonic() - self._worked_s < IDLE_S or self._has_busy_neighbour:
            return IDLE_S
        self._heartbeat.mark_idle()
        self._auditor.step()
        return 0.0

    def _is_left_alone(self) -> bool:
        self._heartbeat.begin_work()  # each step is progress
        self._heartbeat.mark_idle()
        if self._has_busy_neighbour:
            return False
        return worker_state.should_stop is None and not self._deployment.mailboxes.waiting(self._mailbox)

    def _adopt(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            try:
                self._verifier.adopt([request_id])
            except (ValidationError, MessageError):  # another version wrote it; it must not stop the others
                log.exception("the stored request cannot be read", extra=of(request_id))
                self._deployment.requests.end(request_id, FinishReason.ERROR, "the stored request cannot be read")

    def _reconcile(self) -> None:
        """Adopt and release sequences by the store's state."""
        now = time.monotonic()
        if now - self._reconciled_s >= RECONCILE_EVERY_S:
            self._reconciled_s = now
            owned = self._deployment.requests.owned(self._verifier.owner)
            self._adopt(sorted(owned))
            self._verifier.release(set(self._verifier.sequences) - owned)

    def _post(self, jobs: list[DraftJob]) -> None:
        self._deployment.post_all({mailbox: [message] for mailbox, message in jobs_by_mailbox(jobs, FUSE).items()})

    def _settle(self) -> None:
        ended = self._verifier.take_ended()
        self._deployment.post(SETTLE, [Settle(request_id=record.id) for record in ended if record.is_task])
        self._auditor.choose(ended)

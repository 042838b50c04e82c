"""Run a drafter node: from batches of jobs to drafts for the fuser, or to fused trees for their verifiers."""

import time
from collections.abc import Callable

from celery.worker import state as worker_state

from app.assembly.devices import on_another_device
from app.assembly.drafter import build_drafter_node, build_drafters
from app.assembly.fuser import build_fuser
from app.drafter.drafter import in_time
from app.drafter.model import ModelDrafter
from app.drafter.replicas import fetcher
from app.messages import FUSE, Draft, DraftJob, SharedPath, ToDrafter, ToFuser, mailbox_of
from app.pipeline import SentTree, begin_drafts, go_on_drafting
from workers.deployment import Deployment, trees_by_mailbox
from workers.heartbeat import Heartbeat
from workers.mailbox_consumer import consume_mailbox
from workers.service import RoleService

BETWEEN_LOOKS_S = 0.005  # ten times what a look for mail takes


def stay() -> None: ...


def serve(
    deployment: Deployment,
    node: str,
    models: list[ModelDrafter] | None = None,
    *,
    is_apart: bool = False,
    follow: Callable[[], None] = stay,
) -> RoleService:
    """`is_apart`: on cores that no verifier uses. `follow`, called by the working thread before any work, moves it to
    drafting's part of the machine.
    """
    models = build_drafters(deployment.settings) if models is None else models
    is_apart = is_apart or on_another_device(deployment.settings)
    mailbox = mailbox_of("draft", node)
    segment = build_drafter_node(deployment.settings, models, fetcher(deployment.requests), mailbox)
    fuser = build_fuser(deployment.settings, deployment.tokenizer, deployment.requests)

    def info() -> dict[str, object]:
        return {
            "drafters": [drafter.name for drafter in models],
            "readers": [drafter.name for drafter in models if drafter.reads_state],
            "weights": {drafter.name: drafter.weights for drafter in models},
            "tokenizer": deployment.tokenizer.sha256,
            "waiting": deployment.mailboxes.waiting(mailbox) + segment.waiting,
            "host": f"{deployment.machine}/{node}" if is_apart else deployment.machine,
            **segment.info(),
        }

    heartbeat = Heartbeat(deployment, "draft", node, info=info)

    def handle(messages: list[ToDrafter]) -> float | None:
        """Begin what was asked for, and make passes for all that is under way, or else one ahead.

        Mail waits for BETWEEN_LOOKS_S or a pass, whichever is longer, but for prompts that a pass reads.
        """
        follow()
        if not messages and not segment.is_drafting:
            heartbeat.mark_idle()
            if segment.has_ahead:
                segment.run_ahead()
            return 0.0 if segment.has_ahead else None
        jobs = [
            job for message in messages for job in message.jobs if _is_readable(job, deployment.tokenizer.vocab_size)
        ]
        paths = [
            path
            for message in messages
            for path in message.paths
            if _is_readable(path, deployment.tokenizer.vocab_size)
        ]
        begin_drafts(segment, fuser, in_time(jobs, time.time()))
        segment.drop_late(time.time())
        until_s = time.monotonic() + BETWEEN_LOOKS_S
        drafts: list[Draft] = []
        trees: list[SentTree] = []
        while segment.is_drafting:
            away, fused = go_on_drafting(segment, fuser)
            drafts, trees = drafts + away, trees + fused
            is_enough = drafts or trees or time.monotonic() >= until_s
            if is_enough and worker_state.should_stop is None:
                break
        answered = {*(draft.request_id for draft in drafts), *(tree.request_id for _, tree in trees)}
        heartbeat.working_on(answered.union(path.request_id for path in paths))  # one span a draft, its last pass
        deployment.post_all(trees_by_mailbox(trees))
        guesses = segment.guess(paths)
        if drafts or guesses:
            deployment.post(FUSE, [ToFuser(drafts=tuple(drafts), guesses=tuple(guesses))])
        return 0.0 if segment.is_drafting or segment.has_ahead else None

    doorbells = {mailbox: lambda: consume_mailbox(deployment, heartbeat, mailbox, ToDrafter, handle)}
    return RoleService(heartbeat, doorbells, [deployment.exchange_stats(deployment.counters)])


def _is_readable(message: DraftJob | SharedPath, vocab_size: int) -> bool:
    """Return whether all tokens are in the vocabulary: another id crashes a process on a GPU."""
    return max(message.tokens, default=0) < vocab_size

"""Run a drafter node: from batches of jobs to drafts for the fuser, or to fused trees for their verifiers."""

import time
from collections.abc import Callable

from app.assembly.devices import on_another_device
from app.assembly.drafter import build_drafter_node, build_drafters
from app.assembly.fuser import build_fuser
from app.drafter.drafter import in_time
from app.drafter.model import ModelDrafter
from app.drafter.replicas import fetcher
from app.messages import FUSE, DraftJob, SharedPath, ToDrafter, ToFuser, mailbox_of
from app.pipeline import draft_and_fuse
from workers.deployment import Deployment, trees_by_mailbox
from workers.heartbeat import Heartbeat
from workers.mailbox_consumer import consume_mailbox
from workers.service import RoleService


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
            "waiting": deployment.mailboxes.waiting(mailbox),
            "host": f"{deployment.machine}/{node}" if is_apart else deployment.machine,
            **segment.info(),
        }

    heartbeat = Heartbeat(deployment, "draft", node, info=info)

    def handle(messages: list[ToDrafter]) -> float | None:
        """Draft the jobs; without mail run one step ahead: mail waits for one step at most."""
        follow()
        if not messages and segment.has_ahead:
            heartbeat.mark_idle()
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
        at_work = {job.request_id for job in jobs if not job.is_last}
        heartbeat.working_on(at_work.union(path.request_id for path in paths))
        drafts, trees = draft_and_fuse(segment, fuser, in_time(jobs, time.time()))
        deployment.post_all(trees_by_mailbox(trees))
        guesses = segment.guess(paths)
        if drafts or guesses:
            deployment.post(FUSE, [ToFuser(drafts=tuple(drafts), guesses=tuple(guesses))])
        return 0.0 if segment.has_ahead else None

    doorbells = {mailbox: lambda: consume_mailbox(deployment, heartbeat, mailbox, ToDrafter, handle)}
    return RoleService(heartbeat, doorbells, [deployment.exchange_stats(deployment.counters)])


def _is_readable(message: DraftJob | SharedPath, vocab_size: int) -> bool:
    """Return whether all tokens are in the vocabulary: another id crashes a process on a GPU."""
    return max(message.tokens, default=0) < vocab_size

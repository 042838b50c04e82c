"""A drafter node: batches of jobs in; drafts to the fusion task, or fused trees to their verifiers."""

import socket
import time

from app.assemble import drafters
from app.assemble_resident import fusing
from app.following import fetcher
from app.messages import DraftJob, ToDrafter, ToFuser
from app.pipeline import Drafting
from workers.attend import attend
from workers.celery_app import ATTEND
from workers.office import FUSE, Office, mailbox_of
from workers.pulse import Pulse
from workers.trees import send_trees


def serve(office: Office, node: str) -> tuple[Pulse, list[str]]:
    """Load the drafters, register the doorbell's task."""
    models = drafters(office.settings)
    mailbox = mailbox_of("draft", node)
    drafting = Drafting(models, fetcher(office.requests), fusing(office.tokenizer, office.requests), mailbox)

    def info() -> dict[str, object]:
        return {
            "drafters": [drafter.name for drafter in models],
            "tokenizer": office.tokenizer.sha256,
            "waiting": office.mailboxes.waiting(mailbox),
            "host": socket.gethostname(),
        }

    pulse = Pulse(office, "draft", node, info=info)

    def handle(messages: list[ToDrafter]) -> None:
        jobs = [job for message in messages for job in message.jobs if _is_readable(job, office.tokenizer.vocab_size)]
        pulse.works_on(sum(not job.is_last for job in jobs))
        drafts, trees = drafting.run(_in_time(jobs))
        send_trees(office, trees)
        if drafts:
            office.post(FUSE, [ToFuser(drafts=tuple(drafts))])

    @office.celery.task(name=ATTEND, ignore_result=True)
    def draft(rung: str) -> None:
        attend(office, pulse, mailbox, ToDrafter, handle)

    return pulse, [mailbox]


def _is_readable(job: DraftJob, vocab_size: int) -> bool:
    """Whether the model knows all its tokens; an id outside the embedding would bring a GPU's process down."""
    return max(job.tokens, default=0) < vocab_size


def _in_time(jobs: list[DraftJob]) -> list[DraftJob]:
    """Without the jobs whose verifier has gone on already: a drafter that lags must not lag for ever."""
    now_s = time.time()
    return [job for job in jobs if job.is_last or job.due_s > now_s]

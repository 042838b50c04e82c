"""A drafter node: batches of jobs in; drafts to the fusion task, or fused trees to their verifiers."""

import time

from app.assembly.devices import on_another_device
from app.assembly.fuser import fusing
from app.assembly.local import drafters, drafting
from app.drafter.drafter import in_time
from app.drafter.model import ModelDrafter
from app.drafter.replicas import fetcher
from app.messages import FUSE, DraftJob, ToDrafter, ToFuser, mailbox_of
from workers.deployment import Office, send_trees
from workers.heartbeat import Pulse
from workers.mailbox_consumer import attend
from workers.service import Duty
from workers.sharing_zz import share


def serve(office: Office, node: str, models: list[ModelDrafter] | None = None, *, is_aside: bool = False) -> Duty:
    """Load the drafters, unless there are `models`. `is_aside`: on a part of the machine that no verifier takes."""
    models = drafters(office.settings) if models is None else models
    is_aside = is_aside or on_another_device(office.settings)
    mailbox = mailbox_of("draft", node)
    fetch, fuse = fetcher(office.requests), fusing(office.settings, office.tokenizer, office.requests)
    segment = drafting(office.settings, models, fetch, fuse, mailbox)

    def info() -> dict[str, object]:
        return {
            "drafters": [drafter.name for drafter in models],
            "readers": [drafter.name for drafter in models if drafter.reads_state],
            "tokenizer": office.tokenizer.sha256,
            "waiting": office.mailboxes.waiting(mailbox),
            "host": f"{office.machine}/{node}" if is_aside else office.machine,
            "calibration": fuse.calibration.told(),
            **segment.ahead(),
        }

    pulse = Pulse(office, "draft", node, info=info)
    share(office, pulse, fuse.calibration)

    def handle(messages: list[ToDrafter]) -> float | None:
        """Draft what is asked for; without mail, one step ahead of what was, so that mail never waits for more."""
        if not messages and segment.has_ahead:
            pulse.need_not()
            segment.run_ahead()
            return 0.0 if segment.has_ahead else None
        jobs = [job for message in messages for job in message.jobs if _is_readable(job, office.tokenizer.vocab_size)]
        at_work = {job.request_id for job in jobs if not job.is_last}
        pulse.works_on(len(at_work))
        pulse.about(at_work)
        drafts, trees = segment.run(in_time(jobs, time.time()))
        send_trees(office, trees)
        if drafts:
            office.post(FUSE, [ToFuser(drafts=tuple(drafts))])
        return 0.0 if segment.has_ahead else None

    return Duty(pulse, {mailbox: lambda: attend(office, pulse, mailbox, ToDrafter, handle)})


def _is_readable(job: DraftJob, vocab_size: int) -> bool:
    """Whether the model knows all its tokens; an id outside the embedding would bring a GPU's process down."""
    return max(job.tokens, default=0) < vocab_size

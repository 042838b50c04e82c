"""The fusion task: drafts in, one tree a sequence out to its verifier."""

import time

from app.assemble_resident import fusing
from app.messages import ToFuser, ToVerifier, TreeMessage
from workers.attend import attend
from workers.celery_app import ATTEND
from workers.office import FUSE, Office
from workers.pulse import Pulse


def serve(office: Office, node: str) -> tuple[Pulse, list[str]]:
    """Register the doorbell's task. No model here: lookup and suffix tables only."""
    segment = fusing(office.tokenizer, office.requests)
    pulse = Pulse(office, "fuse", node)

    def handle(messages: list[ToFuser]) -> float | None:
        for message in messages:
            segment.expect(message.jobs)
            segment.receive(message.drafts)
        _send(office, segment.collect(time.time()))
        return segment.wait_s(time.time())

    @office.celery.task(name=ATTEND, ignore_result=True)
    def fuse(rung: str) -> None:
        attend(office, pulse, FUSE, ToFuser, handle)

    return pulse, [FUSE]


def _send(office: Office, trees: list[tuple[str, TreeMessage]]) -> None:
    """One message a verifier: its sequences become ready together, and go into one batch."""
    by_verifier: dict[str, list[TreeMessage]] = {}
    for mailbox, tree in trees:
        by_verifier.setdefault(mailbox, []).append(tree)
    for mailbox, batch in by_verifier.items():
        office.post(mailbox, [ToVerifier(trees=tuple(batch))])

"""The fusion task: drafts in, one tree a sequence out to its verifier."""

import time

from app.assembly.fuser import fusing
from app.messages import FUSE, ToFuser
from workers.deployment import Office, send_trees
from workers.heartbeat import Pulse
from workers.mailbox_consumer import attend
from workers.service import Duty
from workers.sharing_zz import share


def serve(office: Office, node: str) -> Duty:
    """Set up the fusion. No model here: lookup and suffix tables only."""
    segment = fusing(office.settings, office.tokenizer, office.requests)
    pulse = Pulse(office, "fuse", node, info=lambda: {"calibration": segment.calibration.told()})
    share(office, pulse, segment.calibration)

    def handle(messages: list[ToFuser]) -> float | None:
        for message in messages:
            segment.expect(message.jobs)
            segment.receive(message.drafts)
        trees = segment.collect(time.time())
        pulse.works_on(len(trees))
        pulse.about(tree.request_id for _, tree in trees)
        send_trees(office, trees)
        return segment.wait_s(time.time())

    return Duty(pulse, {FUSE: lambda: attend(office, pulse, FUSE, ToFuser, handle)})

"""The fuser's process: drafts in, one tree a sequence out to its verifier."""

import time

from app.assembly.fuser import build_fuser
from app.messages import FUSE, ToFuser
from workers.deployment import Deployment, send_trees
from workers.heartbeat import Heartbeat
from workers.mailbox_consumer import consume_mailbox
from workers.service import RoleService
from workers.sharing_zz import share


def serve(deployment: Deployment, node: str) -> RoleService:
    """Set up the fuser. No model here: model-free drafters only."""
    segment = build_fuser(deployment.settings, deployment.tokenizer, deployment.requests)
    heartbeat = Heartbeat(deployment, "fuse", node, info=lambda: {"calibration": segment.calibration.info()})
    share(deployment, heartbeat, segment.calibration)

    def handle(messages: list[ToFuser]) -> float | None:
        for message in messages:
            segment.expect(message.jobs)
            segment.receive(message.drafts)
        trees = segment.collect(time.time())
        heartbeat.works_on(len(trees))
        heartbeat.about(tree.request_id for _, tree in trees)
        send_trees(deployment, trees)
        return segment.wait_s(time.time())

    return RoleService(heartbeat, {FUSE: lambda: consume_mailbox(deployment, heartbeat, FUSE, ToFuser, handle)})

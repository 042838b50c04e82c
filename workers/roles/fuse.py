"""Run a fuser: from drafts to one tree a sequence, for its verifier."""

import time

from app.assembly.fuser import build_fuser
from app.messages import FUSE, ToFuser
from app.pipeline import gather_and_fuse
from workers.deployment import Deployment, paths_by_mailbox, trees_by_mailbox
from workers.heartbeat import Heartbeat
from workers.mailbox_consumer import consume_mailbox
from workers.service import RoleService


def serve(deployment: Deployment, node: str) -> RoleService:
    fuser = build_fuser(deployment.settings, deployment.tokenizer, deployment.requests)
    heartbeat = Heartbeat(deployment, "fuse", node)

    def handle(messages: list[ToFuser]) -> float | None:
        paths, trees = gather_and_fuse(fuser, messages, time.time())
        heartbeat.working_on([path.request_id for _, path in paths] + [tree.request_id for _, tree in trees])
        deployment.post_all({**paths_by_mailbox(paths), **trees_by_mailbox(trees)})
        return fuser.wait_s(time.time())

    doorbells = {FUSE: lambda: consume_mailbox(deployment, heartbeat, FUSE, ToFuser, handle)}
    return RoleService(heartbeat, doorbells, [deployment.exchange_stats(deployment.counters)])

"""Recover from dead processes: place their requests, ring forgotten mailboxes, fail requests that crash verifiers.

Any process may; a lock in Redis allows one at a time.
"""

import logging
import time
from contextlib import suppress

from app.errors import NotFound
from app.logs import of
from app.messages import FUSE, SETTLE, FinishReason, Settle, mailbox_of
from app.store.protocol import Orphan
from workers.deployment import Deployment

log = logging.getLogger(__name__)
EVERY_S = 1.0
MAX_STRIKES = 5  # verifiers that a request may crash before it fails alone


class Recovery:
    """Recover once a second, in one process of the deployment. Implements `HeartbeatTask`."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._recovered_s = 0.0  # monotonic
        self._missed: set[str] = set()

    def beat(self) -> None:
        now_s = time.monotonic()
        if now_s - self._recovered_s >= EVERY_S:
            self._recovered_s = now_s
            if self._deployment.nodes.try_lock("recover", EVERY_S * 0.9):
                self._report(recover(self._deployment))

    def _report(self, missed: set[str]) -> None:
        for target in sorted(missed - self._missed):
            log.warning("requests with tokens of target %s wait: no live verifier has this target", target)
        self._missed = missed


def recover(deployment: Deployment) -> set[str]:
    """Place requests without a live owner, and ring the doorbells of unattended mailboxes.

    Returns the targets without a live verifier for whose tokens requests wait.
    """
    live = deployment.nodes.live()
    began: set[str] = set()
    targets = {"", *(node.info.get("target", "") for node in live if node.kind == "verify")}
    if any(node.kind == "verify" for node in live):
        orphans = deployment.requests.orphans(targets)
        culprit = _culprit(deployment, [one for one in orphans if one.strikes >= MAX_STRIKES])
        for orphan in orphans:
            if orphan is culprit:
                give_up(deployment, orphan.request_id, orphan.strikes)
            else:
                deployment.place(orphan.request_id, orphan.target)
                began.add(orphan.target)
    attended = {FUSE, SETTLE, *(mailbox_of(node.kind, node.name) for node in live)}
    for mailbox in deployment.mailboxes.forgotten():
        if mailbox in attended:  # doorbells for a dead instance would pile up; a restarted one rings for itself
            deployment.ring(mailbox)
    return began - targets


def succeed(deployment: Deployment, kind: str, node: str, owner: str) -> None:
    """Drop a dead process' leases, and place its requests at other verifiers, if there are any; '' is no process."""
    if owner:
        deployment.nodes.retire(kind, node, owner)
        deployment.mailboxes.release(mailbox_of(kind, node), owner)
        recover(deployment)


def give_up(deployment: Deployment, request_id: str, strikes: int) -> None:
    reason = f"{strikes} verifiers died with this request before it committed a token"
    log.error("%s", reason, extra=of(request_id))
    try:
        deployment.requests.end(request_id, FinishReason.ERROR, reason)
    except NotFound:
        return
    deployment.post(SETTLE, [Settle(request_id=request_id)])


def _culprit(deployment: Deployment, struck: list[Orphan]) -> Orphan | None:
    """Find the request that crashed the last verifier among those that lost several.

    After a crash each runs alone, the longest waiting first; those before the culprit commit, so it waits longest.
    """
    if len(struck) < 2:
        return struck[0] if struck else None
    waiting: dict[tuple[float, str], Orphan] = {}
    for orphan in struck:
        with suppress(NotFound):
            snapshot = deployment.requests.snapshot(orphan.request_id)
            since_s = snapshot.stats.last_token_s or snapshot.record.created_s
            waiting[since_s, orphan.request_id] = orphan
    return waiting[min(waiting)] if waiting else None

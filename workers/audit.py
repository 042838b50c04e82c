"""Audit texts: replay a part of the ended requests while a verifier has nothing else to do, and compare the tokens.

Only ids of requests travel, and a replay leaves nothing in Redis but its count.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from zlib import crc32

from pydantic import ValidationError

from app.errors import MessageError, NotFound
from app.logs import of
from app.messages import Record, Status, ToVerifier, mailbox_of
from app.metrics import AUDITS
from app.speculation.routing import serving, verifier
from app.store.protocol import Snapshot
from app.verifier.replay import Replay
from workers.deployment import Deployment

log = logging.getLogger(__name__)
MOST_WAITING = 64  # requests


class Auditor:
    """The audits of one verifier, whose target has the id `target`. For its thread."""

    def __init__(self, deployment: Deployment, mailbox: str, target: str, begin: Callable[[Snapshot], Replay]) -> None:
        self._deployment, self._mailbox, self._target, self._begin = deployment, mailbox, target, begin
        self._waiting = deque[str]()
        self._running: Replay | None = None

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._waiting)

    def choose(self, ended: Iterable[Record]) -> None:
        """Send the chosen part of these requests to another verifier of this target, or else to this one's mailbox."""
        share = self._deployment.settings.audit_share
        chosen = tuple(one.id for one in ended if crc32(one.id.encode()) < share * 2**32)
        if chosen:
            live = serving(self._deployment.nodes.live("verify"), self._deployment.tokenizer.sha256, self._target)
            others = [node for node in live if mailbox_of("verify", node.name) != self._mailbox]
            other = verifier(others, self._deployment.requests.held(node.owner for node in others))
            mailbox = self._mailbox if other is None else mailbox_of("verify", other.name)
            self._deployment.post(mailbox, [ToVerifier(audit=chosen)])

    def add(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            if len(self._waiting) < MOST_WAITING:
                self._waiting.append(request_id)
            else:
                self._count("skipped")

    def give_way(self) -> None:
        """Give memory back, for requests that have come; the next `step` goes on."""
        if self._running is not None:
            self._running.give_back()

    def step(self) -> None:
        """Run one step of the present audit, or begin the next one. Raises StoreUnavailable."""
        replay, self._running = self._running or self._next(), None
        if replay is None:
            return
        if time.time() > (replay.answered.ended_s or 0.0) + self._deployment.settings.request_ttl_s:
            replay.give_back()  # it had to give way until the request expired
            self._count("skipped")
        elif not replay.step():
            self._running = replay
        elif (index := replay.difference()) is None or replay.failed:
            self._count("skipped" if replay.failed else "same")
        else:
            log.error("differs without speculation from token %d on", index, extra=of(replay.answered.record.id))
            self._count("differs")

    def _next(self) -> Replay | None:
        try:
            answered = self._deployment.requests.snapshot(self._waiting.popleft())
        except (NotFound, ValidationError, MessageError):  # the last two: another version wrote it
            self._count("skipped")
            return None
        is_ours = answered.status is Status.DONE and answered.target == self._target
        return self._begin(answered) if is_ours else None

    def _count(self, result: str) -> None:
        self._deployment.counters.count(AUDITS, result)

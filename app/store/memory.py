"""Keep requests in this process's memory, for the pipeline without Redis."""

import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from app.errors import NotFound, QueueFull
from app.messages import Event, FinishReason, Record, Stats, Status
from app.store.protocol import (
    ACTIVE_TTL_S,
    RETRY_AFTER_S,
    Committed,
    Orphan,
    Outcome,
    SentCommit,
    Snapshot,
    check,
    final_status,
    past,
)


@dataclass(slots=True)
class _Entry:
    record: Record
    task: str | None
    expires_s: float
    status: Status = Status.ACTIVE
    events: list[Event] = field(default_factory=list)
    length: int = 0
    stats: Stats = field(default_factory=Stats)
    finish_reason: FinishReason | None = None
    error: str | None = None
    owner: str = ""
    target: str = ""
    strikes: int = 0
    ended_s: float | None = None


class MemoryStore:
    """Implements `Requests` for one process; thread-safe."""

    def __init__(
        self,
        *,
        ttl_s: float = 3600.0,
        active_ttl_s: float = ACTIVE_TTL_S,
        is_alive: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._ttl_s = ttl_s
        self._active_ttl_s = active_ttl_s
        self._is_alive = is_alive
        self._entries: dict[str, _Entry] = {}
        self._unsettled: set[str] = set()
        self._claims: dict[str, float] = {}  # by request id: when the claim runs out
        self._changed = threading.Condition()

    def create(self, record: Record, *, limit: int, task: str | None = None) -> bool:
        with self._changed:
            self._expire()
            if record.id in self._entries:
                return False
            active = len(self._active())
            if active >= limit:
                raise QueueFull(active, RETRY_AFTER_S)
            self._entries[record.id] = _Entry(record, task, time.time() + self._active_ttl_s)
            if task is not None:
                self._unsettled.add(record.id)
            return True

    def assign(self, request_id: str, owner: str, target: str = "") -> bool:
        with self._changed:
            entry = self._find(request_id)
            if entry is None or entry.status != Status.ACTIVE:
                return False
            if entry.length and entry.target not in ("", target):
                return False
            if entry.owner not in ("", owner):
                if self._is_alive(entry.owner):
                    return False
                entry.strikes += 1
            entry.owner, entry.target = owner, target
            return True

    def target(self, request_id: str) -> str:
        with self._changed:
            entry = self._find(request_id)
            return "" if entry is None else entry.target

    def owned(self, owner: str) -> set[str]:
        with self._changed:
            self._expire()
            return {entry.record.id for entry in self._active() if entry.owner == owner}

    def commit_later(self, owner: str, events: list[tuple[str, Event]], mailbox: str) -> SentCommit:
        committed = Committed(self.commit(owner, events), 0)
        return SentCommit(lambda: True, lambda: committed)

    def commit(self, owner: str, events: list[tuple[str, Event]]) -> list[Outcome]:
        for _, event in events:
            check(event)
        with self._changed:
            outcomes = [self._commit(owner, self._find(request_id), event) for request_id, event in events]
            self._changed.notify_all()
            return outcomes

    def end(self, request_id: str, reason: FinishReason, error: str | None = None) -> bool:
        with self._changed:
            entry = self._get(request_id)
            if entry.status != Status.ACTIVE:
                return False
            event = Event(offset=entry.length, finish_reason=reason, error=error, stats=entry.stats)
            self._append(entry, event)
            self._changed.notify_all()
            return True

    def snapshot(self, request_id: str) -> Snapshot:
        with self._changed:
            entry = self._get(request_id)
            return Snapshot(
                record=entry.record,
                status=entry.status,
                tokens=tuple(token for event in entry.events for token in event.tokens),
                logprobs=tuple(one for event in entry.events for one in event.logprobs),
                prompt_logprobs=tuple(one for event in entry.events for one in event.prompt_logprobs),
                finish_reason=entry.finish_reason,
                error=entry.error,
                stats=entry.stats,
                stats_after=tuple(event.stats for event in entry.events),
                owner=entry.owner,
                strikes=entry.strikes,
                ended_s=entry.ended_s,
                target=entry.target,
            )

    def events(self, request_id: str, offset: int) -> list[Event]:
        with self._changed:
            return _past(self._get(request_id).events, offset)

    def ended(self, request_id: str, wait_s: float = 0.0) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._get(request_id).status != Status.ACTIVE, wait_s)
            return self._get(request_id).status != Status.ACTIVE

    def orphans(self, targets: Iterable[str] = (), count: int = 100) -> list[Orphan]:
        """Leave none out for its target: one process has one."""
        with self._changed:
            self._expire()
            lost = [entry for entry in self._active() if not entry.owner or not self._is_alive(entry.owner)]
            return [
                Orphan(entry.record.id, entry.strikes, entry.target if entry.length else "") for entry in lost[:count]
            ]

    def active(self) -> int:
        with self._changed:
            self._expire()
            return len(self._active())

    def unsettled(self) -> list[str]:
        with self._changed:
            self._expire()
            return [request_id for request_id in self._entries if request_id in self._unsettled]

    def task(self, request_id: str) -> str | None:
        with self._changed:
            entry = self._find(request_id)
            return None if entry is None else entry.task

    def claim_settle(self, request_id: str, ttl_s: float) -> bool:
        with self._changed:
            now_s = time.time()
            if request_id not in self._unsettled or self._claims.get(request_id, 0.0) > now_s:
                return False
            self._claims[request_id] = now_s + ttl_s
            return True

    def settled(self, request_id: str) -> None:
        with self._changed:
            self._unsettled.discard(request_id)
            self._claims.pop(request_id, None)

    def _commit(self, owner: str, entry: _Entry | None, event: Event) -> Outcome:
        if entry is None:
            return Outcome.ENDED
        if entry.status != Status.ACTIVE or (entry.owner == owner and event.offset != entry.length):
            is_again = entry.owner == owner and event in entry.events
            late = Outcome.STALE if entry.status == Status.ACTIVE else Outcome.ENDED
            return Outcome.COMMITTED if is_again else late
        if entry.owner != owner:
            return Outcome.FENCED
        entry.strikes = 0
        self._append(entry, event)
        return Outcome.COMMITTED

    def _append(self, entry: _Entry, event: Event) -> None:
        entry.events.append(event)
        entry.length += len(event.tokens)
        entry.stats = event.stats
        if event.finish_reason is not None:
            entry.status = final_status(event.finish_reason)
            entry.finish_reason = event.finish_reason
            entry.error = event.error
            entry.ended_s = time.time()
            entry.expires_s = entry.ended_s + self._ttl_s

    def _active(self) -> list[_Entry]:
        return [entry for entry in self._entries.values() if entry.status == Status.ACTIVE]

    def _find(self, request_id: str) -> _Entry | None:
        entry = self._entries.get(request_id)
        return entry if entry is not None and entry.expires_s > time.time() else None

    def _get(self, request_id: str) -> _Entry:
        entry = self._find(request_id)
        if entry is None:
            raise NotFound(request_id)
        return entry

    def _expire(self) -> None:
        now_s = time.time()
        for request_id in [key for key, entry in self._entries.items() if entry.expires_s <= now_s]:
            del self._entries[request_id]
            self._unsettled.discard(request_id)
            self._claims.pop(request_id, None)


def _past(events: list[Event], offset: int) -> list[Event]:
    first = bisect_right(events, offset, key=lambda event: event.offset + len(event.tokens))
    return past(events[max(0, min(first, len(events) - 1)) :], offset)  # the last one may be the terminal event

"""Define the protocol of a store of requests, `Requests`: in Redis (`RequestStore`) or in memory (`MemoryStore`).

A request's committed tokens are its events, end to end. Only the owner appends, by compare-and-set on their number; any
process may end a request, once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from msgspec.structs import replace

from app.messages import Event, FinishReason, Record, Stats, Status
from app.request import TokenLogprobs

ACTIVE_TTL_S = 86400.0  # a request that does not end is dropped after this
RETRY_AFTER_S = 1.0  # sent to a caller that finds the queue full


class Outcome(StrEnum):
    COMMITTED = "committed"
    STALE = "stale"  # it does not start where the committed tokens end
    FENCED = "fenced"  # another process owns the request now
    ENDED = "ended"  # the request has ended, or expired
    FAILED = "failed"  # what is stored of the request cannot be added to


class Committed(NamedTuple):
    """A commit's outcomes, and the number of items that waited in its owner's mailbox."""

    outcomes: list[Outcome]
    waiting: int


class SentCommit(NamedTuple):
    """A commit under way. `is_ready`: whether `read`, which is called once, would not have to wait.

    `read` raises StoreUnavailable; whether the commit counted is then unknown.
    """

    is_ready: Callable[[], bool]
    read: Callable[[], Committed]


class Orphan(NamedTuple):
    """An active request without a live owner; `strikes`: owners that died since its last commit."""

    request_id: str
    strikes: int
    target: str = ""  # id of the one that its committed tokens are of; empty before the first


@dataclass(frozen=True, slots=True)
class Snapshot:
    record: Record
    status: Status
    tokens: tuple[int, ...]  # generated and committed
    logprobs: tuple[TokenLogprobs, ...]  # of each of them, if the request wants them
    finish_reason: FinishReason | None
    error: str | None
    stats: Stats
    owner: str  # the last one; empty before the first
    strikes: int
    ended_s: float | None
    target: str = ""  # id of the last owner's (`app.engine.weights.target_id`)


class Requests(Protocol):
    """The requests of a deployment, from admission to their end. Any thread may call.

    With Redis every method raises StoreUnavailable.
    """

    def create(self, record: Record, *, limit: int, task: str | None = None) -> bool:
        """Store a new request; False if its id is known. `task` is a Celery task's context as JSON.

        Raises QueueFull when `limit` requests are active.
        """

    def assign(self, request_id: str, owner: str, target: str = "") -> bool:
        """Make `owner`, which verifies with the target of this id, the owner.

        False if the request has a live owner, has ended, or has tokens of another target. Taking it from a dead owner
        is a strike; a commit clears all strikes.
        """

    def target(self, request_id: str) -> str:
        """Return the id of the last owner's target; empty before the first."""

    def owned(self, owner: str) -> set[str]:
        """Return the ids of the owner's active requests."""

    def commit(self, owner: str, events: list[tuple[str, Event]]) -> list[Outcome]:
        """Append each event to its request; `finish_reason` ends it. Each is committed or not on its own.

        The same commit again counts once.
        """

    def commit_later(self, owner: str, events: list[tuple[str, Event]], mailbox: str) -> SentCommit:
        """Send a commit without waiting for its outcomes. `mailbox`: the owner's, whose depth comes with them."""

    def end(self, request_id: str, reason: FinishReason, error: str | None = None) -> bool:
        """End a request from outside; False if it had ended. Raises NotFound."""

    def snapshot(self, request_id: str) -> Snapshot:
        """Return the request as it is now. Raises NotFound."""

    def events(self, request_id: str, offset: int) -> list[Event]:
        """Return the events past the first `offset` generated tokens; the first one starts exactly there.

        At the end of an ended request, that is the terminal event without tokens. Raises NotFound.
        """

    def ended(self, request_id: str, wait_s: float = 0.0) -> bool:
        """Return whether the request has ended, waiting up to about `wait_s` for it. Raises NotFound."""

    def orphans(self, count: int = 100) -> list[Orphan]:
        """List active requests without a live owner, the oldest first."""

    def active(self) -> int:
        """Count the requests that have not ended."""

    def unsettled(self) -> list[str]:
        """List the requests, running ones included, whose task has no result yet, the oldest first."""

    def task(self, request_id: str) -> str | None:
        """Return the `task` of `create`, if any."""

    def claim_settle(self, request_id: str, ttl_s: float) -> bool:
        """Become the only one to settle this request for `ttl_s`; False if it is settled or claimed."""

    def settled(self, request_id: str) -> None:
        """Record that the task has its result."""


def final_status(reason: FinishReason) -> Status:
    return _FINAL[reason]


def past(events: list[Event], offset: int) -> list[Event]:
    """Return the events past the first `offset` tokens, a terminal event even if it has none of them."""
    rest = [_cut(event, offset) for event in events]
    return [event for event in rest if event.tokens or event.finish_reason is not None]


def check(event: Event) -> None:
    """Raise ValueError for an event that commits nothing."""
    if not event.tokens and event.finish_reason is None:
        raise ValueError("an event without tokens has to end its request")


def _cut(event: Event, offset: int) -> Event:
    skip = min(max(offset - event.offset, 0), len(event.tokens))
    if skip == 0:
        return event
    rest = {name: getattr(event, name)[skip:] for name in ("tokens", "proposers", "logprobs")}
    return replace(event, offset=event.offset + skip, **rest)


_FINAL = {
    FinishReason.STOP: Status.DONE,
    FinishReason.LENGTH: Status.DONE,
    FinishReason.CANCELLED: Status.CANCELLED,
    FinishReason.ERROR: Status.FAILED,
}


@dataclass(frozen=True, slots=True)
class Node:
    """A live process as its last heartbeat described it.

    The entries of `info` that Paceline reads are of the expected types.
    """

    kind: str
    name: str
    owner: str
    progress_s: float  # wall clock of its last progress, which a heartbeat alone is not
    info: dict[str, Any]

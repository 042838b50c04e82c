"""Define the protocol of a store of requests, `Requests`.

A request's events join to its committed tokens. Only the owner appends, by compare-and-set on their number; any process
may end a request, once.
"""

from collections.abc import Callable, Iterable
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
    """The outcomes, and the number of items in the owner's mailbox."""

    outcomes: list[Outcome]
    waiting: int


class SentCommit(NamedTuple):
    """`is_ready`: whether `read` would return at once.

    `read`, called once, raises StoreUnavailable; whether the commit counted is then unknown.
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
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()  # of the prompt's tokens behind its first, if they are wanted
    stats_after: tuple[Stats, ...] = ()  # each commit


class Requests(Protocol):
    """Thread-safe. With Redis every method raises StoreUnavailable."""

    def create(self, record: Record, *, limit: int, task: str | None = None) -> bool:
        """False if the id is known. `task`: a Celery task's context as JSON.

        Raises QueueFull when `limit` requests are active.
        """

    def assign(self, request_id: str, owner: str, target: str = "") -> bool:
        """Make `owner`, whose target has the id `target`, the owner.

        False if the request has a live owner, has ended, or has tokens of another target. Taking it from a dead owner
        is a strike; a commit clears all strikes.
        """

    def target(self, request_id: str) -> str:
        """Return the last owner's target's id; empty before the first."""

    def owned(self, owner: str) -> set[str]: ...

    def commit(self, owner: str, events: list[tuple[str, Event]]) -> list[Outcome]:
        """Append events independently; `finish_reason` ends a request. A repeated commit counts once."""

    def commit_later(self, owner: str, events: list[tuple[str, Event]], mailbox: str) -> SentCommit:
        """Do not wait for outcomes. `mailbox`: the owner's, whose depth is returned too."""

    def end(self, request_id: str, reason: FinishReason, error: str | None = None) -> bool:
        """False if it had ended. Raises NotFound."""

    def snapshot(self, request_id: str) -> Snapshot:
        """Raises NotFound."""

    def events(self, request_id: str, offset: int) -> list[Event]:
        """Return the events past the first `offset` generated tokens, the first cut to start there.

        At the end of an ended request, that is the terminal event without tokens. Raises NotFound.
        """

    def ended(self, request_id: str, wait_s: float = 0.0) -> bool:
        """Wait up to about `wait_s` for the end. Raises NotFound."""

    def orphans(self, targets: Iterable[str] = (), count: int = 100) -> list[Orphan]:
        """Oldest first; of requests with tokens of another target than these, one for each target."""

    def active(self) -> int: ...

    def unsettled(self) -> list[str]:
        """List the requests, running ones included, whose task has no result yet."""

    def task(self, request_id: str) -> str | None: ...

    def claim_settle(self, request_id: str, ttl_s: float) -> bool:
        """Hold for `ttl_s`; False if it is settled or claimed."""

    def settled(self, request_id: str) -> None: ...


def final_status(reason: FinishReason) -> Status:
    return _FINAL[reason]


def past(events: list[Event], offset: int) -> list[Event]:
    """Keep a terminal event even without tokens past `offset`."""
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
    rejected = tuple(replace(one, place=one.place - skip) for one in event.rejected if one.place >= skip)
    return replace(event, offset=event.offset + skip, rejected=rejected, **rest)


_FINAL = {
    FinishReason.STOP: Status.DONE,
    FinishReason.LENGTH: Status.DONE,
    FinishReason.CANCELLED: Status.CANCELLED,
    FinishReason.ERROR: Status.FAILED,
}


@dataclass(frozen=True, slots=True)
class Node:
    """Entries of `info` that Paceline reads have the expected types."""

    kind: str
    name: str
    owner: str
    progress_s: float  # wall clock of its last progress, which a heartbeat alone is not
    info: dict[str, Any]

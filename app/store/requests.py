"""Keep requests in Redis: their records, committed tokens and owners (design D2, D10).

Every change of a request is one Lua call, fenced by its owner's name and compared with its
committed length, so a message that comes twice, late or from a worker given up for dead changes
nothing. `app.store.protocol.Requests` describes the methods.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any, cast

import redis

from app.errors import NotFound, QueueFull
from app.messages import Event, FinishReason, Record, Stats, Status
from app.store.connect import BLOCK_S, Script
from app.store.keys import Keys
from app.store.protocol import (
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

ROWS = 64  # events that one call of the script commits
__all__ = ["Orphan", "Outcome", "RequestStore", "Snapshot"]


class RequestStore:
    """The store of requests that all processes of a deployment share. Implements `Requests`."""

    def __init__(
        self,
        client: redis.Redis,
        namespace: str,
        *,
        ttl_s: float,
        active_ttl_s: float,
        on_ended: Callable[[FinishReason], None] = lambda reason: None,
        durable: bool = False,
    ) -> None:
        """Load the scripts; connects at the first call.

        `on_ended` is called once for each request that `end` ends. `durable`: `create` returns when
        the request is on Redis's disk.
        """
        self._client = client
        self._keys = Keys(namespace)
        self._on_ended = on_ended
        self._ttl_ms = int(ttl_s * 1000)
        self._active_ttl_ms = int(active_ttl_s * 1000)
        create = Script(client, "create")
        self._create = create.durably if durable else create
        self._assign = Script(client, "assign")
        self._commit = Script(client, "finish", "commit")
        self._end = Script(client, "finish", "end")
        self._orphans = Script(client, "orphans")
        self._claim = Script(client, "claim")
        self._members = Script(client, "members")

    def create(self, record: Record, *, limit: int, task: str | None = None) -> bool:
        """Store a new request; False if its id is known. Raises QueueFull."""
        keys = [self._keys.request(record.id), self._keys.active, self._keys.unsettled]
        stored = record.model_dump_json()  # in full: another version may have other defaults
        made, *active = self._create(keys, [record.id, stored, limit, self._active_ttl_ms, task or ""])
        if made < 0:
            raise QueueFull(active[0], RETRY_AFTER_S)
        return bool(made)

    def assign(self, request_id: str, owner: str, target: str = "") -> bool:
        """Make `owner` the owner, unless the request has a live one, has ended or is another target's."""
        keys = [self._keys.request(request_id), self._keys.owned(owner)]
        args = [request_id, owner, self._active_ttl_ms, self._keys.owned(""), self._keys.lease(""), target]
        return bool(self._assign(keys, args))

    def target(self, request_id: str) -> str:
        """Return the id of the target of the request's last owner; empty before the first."""
        return cast(str | None, self._client.hget(self._keys.request(request_id), "target")) or ""

    def owned(self, owner: str) -> set[str]:
        """Return the ids of the owner's active requests."""
        return set(self._members([self._keys.owned(owner)], []))

    def held(self, owners: Iterable[str]) -> dict[str, int]:
        """Count the active requests that each of these owns at this moment."""
        pipe, names = self._client.pipeline(transaction=False), list(owners)
        for owner in names:
            pipe.zcard(self._keys.owned(owner))
        return dict(zip(names, pipe.execute(), strict=True))

    def commit(self, owner: str, events: list[tuple[str, Event]]) -> list[Outcome]:
        """Append each event to its request, all in one round trip; each stands or falls alone."""
        return _committed(self._commit.each(self._commit_calls(owner, events, ""))).outcomes

    def commit_later(self, owner: str, events: list[tuple[str, Event]], mailbox: str) -> SentCommit:
        """Send a commit without waiting for its outcomes.

        Commits that failed on the way are sent again when these are read: the same commit counts
        once. `mailbox`: the owner's, whose depth comes with the outcomes.
        """
        sent = self._commit.send(self._commit_calls(owner, events, mailbox))
        return SentCommit(sent.is_ready, lambda: _committed(sent.replies()))

    def end(self, request_id: str, reason: FinishReason, error: str | None = None) -> bool:
        """End a request from outside; False if it had ended. Raises NotFound."""
        name = self._keys
        own = [name.request(request_id), name.events(request_id)]
        keys = [*own, name.active, name.unsettled, name.ended(request_id)]
        final, owned = final_status(reason), name.owned("")
        args = [request_id, self._ttl_ms, final, reason, error or "", json.dumps(error), owned, name.committed]
        reply = self._end(keys, args)
        if reply < 0:
            raise NotFound(request_id)
        if reply:
            self._on_ended(reason)
        return bool(reply)

    def snapshot(self, request_id: str) -> Snapshot:
        """Return the request, fields and tokens of one moment (MULTI). Raises NotFound."""
        pipe = self._client.pipeline(transaction=True)
        pipe.hgetall(self._keys.request(request_id))
        pipe.xrange(self._keys.events(request_id))
        fields, entries = pipe.execute()
        if not fields:
            raise NotFound(request_id)
        return _snapshot(fields, _events(entries))

    def events(self, request_id: str, offset: int) -> list[Event]:
        """Return the events past the first `offset` tokens. Raises NotFound."""
        pipe = self._client.pipeline(transaction=True)
        pipe.hget(self._keys.request(request_id), "status")
        pipe.xrange(self._keys.events(request_id), min=f"({offset}-0")
        status, entries = pipe.execute()
        if status is None:
            raise NotFound(request_id)
        if not entries and status != Status.ACTIVE:  # all read, or the terminal event carried the last tokens
            entries = self._client.xrevrange(self._keys.events(request_id), count=1)
        return past(_events(entries), offset)

    def ended(self, request_id: str, wait_s: float = 0.0) -> bool:
        """Tell whether the request has ended, waiting up to `wait_s` for it. Raises NotFound."""
        status = self._client.hget(self._keys.request(request_id), "status")
        if status is None:
            raise NotFound(request_id)
        if status != Status.ACTIVE or wait_s <= 0:
            return status != Status.ACTIVE
        key = self._keys.ended(request_id)  # moving its item onto itself only looks, so that many can wait
        found = self._client.blmove(key, key, min(wait_s, BLOCK_S), src="LEFT", dest="LEFT")  # type: ignore[arg-type]
        return found is not None

    def orphans(self, count: int = 100) -> list[Orphan]:
        """List active requests without a live owner, the oldest first."""
        args = [count, self._keys.request(""), self._keys.lease("")]
        flat = self._orphans([self._keys.active], args)
        return [Orphan(flat[i], int(flat[i + 1]), flat[i + 2]) for i in range(0, len(flat), 3)]

    def active(self) -> int:
        """Count the requests that have not ended."""
        return len(self._members([self._keys.active], []))

    def unsettled(self) -> list[str]:
        """List the requests whose submitting task has no result yet, running ones included."""
        return list(self._members([self._keys.unsettled], []))

    def task(self, request_id: str) -> str | None:
        """Return the `task` that `create` had; None: none, or the request is unknown."""
        return cast(str | None, self._client.hget(self._keys.request(request_id), "task"))

    def claim_settle(self, request_id: str, ttl_s: float) -> bool:
        """Become the only one to settle this request for `ttl_s`.

        False if it is settled or claimed.
        """
        keys = [self._keys.unsettled, self._keys.settle(request_id)]
        return bool(self._claim(keys, [request_id, int(ttl_s * 1000)]))

    def settled(self, request_id: str) -> None:
        """Record that the task has its result.

        The claim stays and runs out by itself, so that a reader of an old list settles nothing
        again.
        """
        self._client.zrem(self._keys.unsettled, request_id)

    def _commit_calls(
        self, owner: str, events: list[tuple[str, Event]], mailbox: str
    ) -> list[tuple[list[str], list[Any]]]:
        """Make the script's calls, each of at most ROWS events, so that none holds Redis up for long."""
        name = self._keys
        shared = [name.active, name.owned(owner), name.unsettled, name.mail(mailbox)]
        calls = []
        for first in range(0, len(events), ROWS):
            keys: list[str] = [*shared]
            args: list[Any] = [owner, self._ttl_ms, name.committed]
            for request_id, event in events[first : first + ROWS]:
                check(event)
                keys += (name.request(request_id), name.events(request_id), name.ended(request_id))
                stored, stats = stored_texts(event)
                reason = event.finish_reason
                end = ("", "", "") if reason is None else (final_status(reason), reason, event.error or "")
                args += (request_id, event.offset, len(event.tokens), stored, stats, *end)
            calls.append((keys, args))
        return calls


def stored_texts(event: Event) -> tuple[str, str]:
    """Write an event as its stream keeps it, and its statistics alone."""
    return event.json(), event.stats.json()


def _committed(replies: list[list[Any]]) -> Committed:
    """Join the replies of a commit's calls: outcomes, and at the end of each the mailbox's depth."""
    outcomes = [Outcome(outcome) for reply in replies for outcome in reply[:-1]]
    return Committed(outcomes, replies[-1][-1] if replies else 0)


def _events(entries: list[tuple[str, dict[str, str]]]) -> list[Event]:
    return [Event.read(fields["event"]) for _, fields in entries]


def _snapshot(fields: dict[str, str], events: list[Event]) -> Snapshot:
    reason, ended_ms = fields.get("finish_reason"), fields.get("ended_ms")
    return Snapshot(
        record=Record.model_validate_json(fields["record"]),
        status=Status(fields["status"]),
        tokens=tuple(token for event in events for token in event.tokens),
        logprobs=tuple(one for event in events for one in event.logprobs),
        finish_reason=FinishReason(reason) if reason else None,
        error=fields.get("error") or None,
        stats=Stats.read(fields["stats"]),
        owner=fields["owner"],
        strikes=int(fields["strikes"]),
        target=fields.get("target", ""),  # another version's owner gave none
        ended_s=int(ended_ms) / 1000 if ended_ms else None,
    )

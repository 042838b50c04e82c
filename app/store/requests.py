"""Keep requests in Redis: their records, committed tokens and owners (design D2, D10).

Every change is one Lua call, fenced by the owner's name and compared with the committed length, so a repeated or late
message, or one from a process taken for dead, has no effect.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any, cast

import redis

from app.errors import NotFound, QueueFull
from app.messages import Event, FinishReason, Record, Stats, Status
from app.store.connect import BLOCK_S, Script
from app.store.event_stream import commit_calls, committed, read_events
from app.store.keys import Keys
from app.store.protocol import (
    RETRY_AFTER_S,
    Orphan,
    Outcome,
    SentCommit,
    Snapshot,
    final_status,
    past,
)


class RequestStore:
    """Implements `Requests`."""

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
        """`on_ended` is called once for each request that `end` ends. `durable`: `create` waits for Redis' disk."""
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
        keys = [self._keys.request(record.id), self._keys.active, self._keys.unsettled]
        stored = record.model_dump_json(exclude_defaults=True)  # another version may lack the others
        made, *active = self._create(keys, [record.id, stored, limit, self._active_ttl_ms, task or ""])
        if made < 0:
            raise QueueFull(active[0], RETRY_AFTER_S)
        return bool(made)

    def assign(self, request_id: str, owner: str, target: str = "") -> bool:
        keys = [self._keys.request(request_id), self._keys.owned(owner)]
        args = [request_id, owner, self._active_ttl_ms, self._keys.owned(""), self._keys.lease(""), target]
        return bool(self._assign(keys, args))

    def target(self, request_id: str) -> str:
        return cast(str | None, self._client.hget(self._keys.request(request_id), "target")) or ""

    def owned(self, owner: str) -> set[str]:
        return set(self._members([self._keys.owned(owner)], []))

    def held(self, owners: Iterable[str]) -> dict[str, int]:
        pipe, names = self._client.pipeline(transaction=False), list(owners)
        for owner in names:
            pipe.zcard(self._keys.owned(owner))
        return dict(zip(names, pipe.execute(), strict=True))

    def commit(self, owner: str, events: list[tuple[str, Event]]) -> list[Outcome]:
        return committed(self._commit.each(self._commit_calls(owner, events, ""))).outcomes

    def commit_later(self, owner: str, events: list[tuple[str, Event]], mailbox: str) -> SentCommit:
        """Lost calls are sent again when outcomes are read."""
        sent = self._commit.send(self._commit_calls(owner, events, mailbox))
        return SentCommit(sent.is_ready, lambda: committed(sent.replies()))

    def end(self, request_id: str, reason: FinishReason, error: str | None = None) -> bool:
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
        """Read the request at one moment (MULTI). Raises NotFound."""
        pipe = self._client.pipeline(transaction=True)
        pipe.hgetall(self._keys.request(request_id))
        pipe.xrange(self._keys.events(request_id))
        fields, entries = pipe.execute()
        if not fields:
            raise NotFound(request_id)
        return _snapshot(fields, read_events(entries))

    def events(self, request_id: str, offset: int) -> list[Event]:
        pipe = self._client.pipeline(transaction=True)
        pipe.hget(self._keys.request(request_id), "status")
        pipe.xrange(self._keys.events(request_id), min=f"({offset}-0")
        status, entries = pipe.execute()
        if status is None:
            raise NotFound(request_id)
        if not entries and status != Status.ACTIVE:  # all read, or the terminal event carried the last tokens
            entries = self._client.xrevrange(self._keys.events(request_id), count=1)
        return past(read_events(entries), offset)

    def ended(self, request_id: str, wait_s: float = 0.0) -> bool:
        status = self._client.hget(self._keys.request(request_id), "status")
        if status is None:
            raise NotFound(request_id)
        if status != Status.ACTIVE or wait_s <= 0:
            return status != Status.ACTIVE
        key = self._keys.ended(request_id)  # moving its item onto itself only looks, so that many can wait
        found = self._client.blmove(key, key, min(wait_s, BLOCK_S), src="LEFT", dest="LEFT")  # type: ignore[arg-type]
        return found is not None

    def orphans(self, targets: Iterable[str] = (), count: int = 100) -> list[Orphan]:
        args = [count, self._keys.request(""), self._keys.lease(""), *targets]
        flat = self._orphans([self._keys.active], args)
        return [Orphan(flat[i], int(flat[i + 1]), flat[i + 2]) for i in range(0, len(flat), 3)]

    def active(self) -> int:
        return len(self._members([self._keys.active], []))

    def unsettled(self) -> list[str]:
        return list(self._members([self._keys.unsettled], []))

    def task(self, request_id: str) -> str | None:
        return cast(str | None, self._client.hget(self._keys.request(request_id), "task"))

    def claim_settle(self, request_id: str, ttl_s: float) -> bool:
        keys = [self._keys.unsettled, self._keys.settle(request_id)]
        return bool(self._claim(keys, [request_id, int(ttl_s * 1000)]))

    def settled(self, request_id: str) -> None:
        """The claim stays until it expires, so that a reader of an old list settles nothing again."""
        self._client.zrem(self._keys.unsettled, request_id)

    def _commit_calls(
        self, owner: str, events: list[tuple[str, Event]], mailbox: str
    ) -> list[tuple[list[str], list[Any]]]:
        return commit_calls(self._keys, owner, events, mailbox, self._ttl_ms)


def _snapshot(fields: dict[str, str], events: list[Event]) -> Snapshot:
    reason, ended_ms = fields.get("finish_reason"), fields.get("ended_ms")
    return Snapshot(
        record=Record.model_validate_json(fields["record"]),
        status=Status(fields["status"]),
        tokens=tuple(token for event in events for token in event.tokens),
        logprobs=tuple(one for event in events for one in event.logprobs),
        prompt_logprobs=tuple(one for event in events for one in event.prompt_logprobs),
        finish_reason=FinishReason(reason) if reason else None,
        error=fields.get("error") or None,
        stats=Stats.read(fields["stats"]),
        stats_after=tuple(event.stats for event in events),
        owner=fields["owner"],
        strikes=int(fields["strikes"]),
        target=fields.get("target", ""),  # another version's owner gave none
        ended_s=int(ended_ms) / 1000 if ended_ms else None,
    )

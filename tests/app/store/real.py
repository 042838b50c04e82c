"""Run the real scripts behind the models' calls: load a state, call, read the state back."""

from typing import Any

import redis

from app.messages import Event, FinishReason, Status
from app.store.event_stream import stored_texts
from app.store.mailbox import Mailboxes
from app.store.nodes import Nodes
from app.store.requests import RequestStore
from tests.app.store.explore import Call
from tests.app.store.models import Entry, Mail, Req
from tests.records import record

NAMESPACE = "model"
LONG_MS = 60_000
FAR_MS = 2**42  # the year 2109
OWNERS = ("v1", "v2")


class RealMail:
    """One mailbox `m` on a server."""

    CALLS = ("post", "attend", "renew", "leave", "release", "take", "forgotten", "expire")

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._boxes = Mailboxes(client, NAMESPACE, lease_s=LONG_MS / 1000)

    def load(self, mail: Mail) -> None:
        """Make the server hold this state and nothing else."""
        pipe = self._client.pipeline()
        pipe.flushdb()
        if mail.items:
            pipe.rpush("model:mail:m", *mail.items)
        if mail.attend:
            pipe.set("model:attend:m", mail.attend, px=LONG_MS)
        if mail.is_listed:
            pipe.sadd("model:mailboxes", "m")
        pipe.execute()

    def call(self, call: Call) -> Any:
        """Run a call, and reply as the model does."""
        name, *args = call
        if name == "expire":
            self._client.delete("model:attend:m")
            return None
        if name == "post":
            return self._boxes.post("m", args)
        if name == "take":
            return tuple(self._boxes.take("m", args[0], args[1], 0.0))
        if name == "forgotten":
            return self._boxes.forgotten() == ["m"]
        return getattr(self._boxes, name)("m", *args)

    def read(self) -> Mail:
        """Read the server's state."""
        pipe = self._client.pipeline()
        pipe.lrange("model:mail:m", 0, -1)
        pipe.get("model:attend:m")
        pipe.sismember("model:mailboxes", "m")
        items, attend, is_listed = pipe.execute()
        return Mail(tuple(items), attend or "", bool(is_listed))


class RealRequest:
    """One request `r` on a server."""

    CALLS = ("beat", "die", "assign", "commit", "end", "orphans", "snapshot")

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._store = RequestStore(client, NAMESPACE, ttl_s=60.0, active_ttl_s=60.0)
        self._nodes = Nodes(client, NAMESPACE, lease_s=60.0)

    def load(self, req: Req) -> None:
        """Make the server hold this state and nothing else, in one round trip."""
        pipe = self._client.pipeline()
        pipe.flushdb()
        for field, value in _fields(req).items():
            pipe.hset("model:request:r", field, value)
        for entry in req.entries:
            event, _ = stored_texts(_event(entry))
            pipe.xadd("model:events:r", {"event": event}, id=_stream_id(entry))
        if req.status == Status.ACTIVE:
            pipe.zadd("model:active", {"r": FAR_MS})
            if req.owner:
                pipe.zadd(f"model:owned:{req.owner}", {"r": FAR_MS})
        for owner in req.alive:
            pipe.set(f"model:lease:{owner}", "1", px=LONG_MS)
        pipe.execute()

    def call(self, call: Call) -> Any:
        """Run a call, and reply as the model does."""
        name, *args = call
        if name == "beat":
            return self._nodes.beat("verify", args[0], args[0], progress_s=0.0, info={})
        if name == "die":
            # The node's name runs out too, as it would with the time.
            self._client.delete(f"model:lease:{args[0]}", f"model:node:verify:{args[0]}")
            return None
        if name == "commit":
            return self._store.commit(args[0], [("r", _event(Entry(args[1], args[2], args[0], args[3])))])[0]
        if name == "orphans":
            return [orphan.request_id for orphan in self._store.orphans()] == ["r"]
        if name == "snapshot":
            found = self._store.snapshot("r")
            return found.status, len(found.tokens)
        return getattr(self._store, name)("r", *args)

    def read(self) -> Req:
        """Read the server's state; the indexes must agree with the request."""
        pipe = self._client.pipeline()
        pipe.hgetall("model:request:r")
        pipe.xrange("model:events:r")
        pipe.zrange("model:active", 0, -1)
        for owner in OWNERS:
            pipe.zrange(f"model:owned:{owner}", 0, -1)
            pipe.exists(f"model:lease:{owner}")
        fields, stream, active, *of_owners = pipe.execute()
        owner, status = fields["owner"], Status(fields["status"])
        owners = {name: ["r"] if name == owner and status == Status.ACTIVE else [] for name in OWNERS}
        assert (active, of_owners[::2]) == (["r"] if status == Status.ACTIVE else [], list(owners.values()))
        entries = tuple(_entry(Event.read(event["event"])) for _, event in stream)
        assert [name for name, _ in stream] == [_stream_id(entry) for entry in entries]
        assert int(fields["length"]) == sum(entry.size for entry in entries)
        alive = frozenset(name for name, lives in zip(OWNERS, of_owners[1::2], strict=True) if lives)
        return Req(owner, status, entries, int(fields["strikes"]), alive)


def _fields(req: Req) -> dict[str, str | int]:
    fields: dict[str, str | int] = {
        "record": _RECORD.model_dump_json(),
        "stats": "{}",
        "owner": req.owner,
        "status": req.status,
        "length": req.length,
        "strikes": req.strikes,
        "expires_ms": FAR_MS,
    }
    if req.status != Status.ACTIVE:
        fields |= {"finish_reason": req.entries[-1].finish or "", "ended_ms": 1, "error": ""}
    return fields


def _stream_id(entry: Entry) -> str:
    return f"{entry.offset + entry.size}-{0 if entry.size else 1}"


def _event(entry: Entry) -> Event:
    tokens = tuple(range(entry.offset, entry.offset + entry.size))
    proposers = (entry.owner,) * entry.size
    return Event(offset=entry.offset, tokens=tokens, proposers=proposers, finish_reason=entry.finish)


def _entry(event: Event) -> Entry:
    assert event.tokens == tuple(range(event.offset, event.offset + len(event.tokens)))
    owner = event.proposers[0] if event.proposers else ""
    reason = None if event.finish_reason is None else FinishReason(event.finish_reason)
    return Entry(event.offset, len(event.tokens), owner, reason)


_RECORD = record((1,), 8, eos_ids=(0,))

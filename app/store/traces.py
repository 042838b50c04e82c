"""Keep the timelines of recent requests: spans of work, and progress.

A timeline's name does not reveal its request, so a viewer cannot read the text.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple, cast

import redis

from app.store.connect import Script
from app.store.keys import Keys

TTL_S = 600.0  # since the last span
MOST_REQUESTS = 64  # timelines kept; more than the dashboard lists
MOST_SPANS = 1024  # of a request; past it the first ones are dropped


class TraceSpan(NamedTuple):
    """Work on a batch of `sequences`, in seconds of the wall clock."""

    start_s: float
    end_s: float
    kind: str
    node: str
    sequences: int


@dataclass(frozen=True, slots=True)
class Trace:
    """An addition to a timeline: spans, and facts by name (JSON each) that replace known ones."""

    name: str
    facts: Mapping[str, str]
    spans: Sequence[TraceSpan]


def trace_name(request_id: str) -> str:
    return sha256(request_id.encode()).hexdigest()[:12]


class Traces:
    """Thread-safe."""

    def __init__(self, client: redis.Redis, namespace: str, *, most: int = MOST_REQUESTS) -> None:
        self._client = client
        self._keys = Keys(namespace)
        self._most = most
        self._trace = Script(client, "trace")

    def add(self, traces: Iterable[Trace]) -> None:
        items = [
            [trace.name, [part for fact in trace.facts.items() for part in fact], [json.dumps(s) for s in trace.spans]]
            for trace in traces
        ]
        if items:
            numbers = [int(time.time() * 1000), self._most, MOST_SPANS, int(TTL_S * 1000)]
            prefixes = [self._keys.trace(""), self._keys.about("")]
            self._trace([self._keys.traced], [*numbers, *prefixes, json.dumps(items)])

    def recent(self, count: int) -> dict[str, dict[str, str]]:
        names = cast(list[str], self._client.zrevrange(self._keys.traced, 0, count - 1))
        pipe = self._client.pipeline(transaction=False)
        for name in names:
            pipe.hgetall(self._keys.about(name))
        return {name: facts for name, facts in zip(names, pipe.execute() if names else [], strict=True) if facts}

    def spans(self, name: str) -> list[TraceSpan]:
        texts = cast(list[str], self._client.lrange(self._keys.trace(name), 0, -1))
        return [TraceSpan(*json.loads(text)) for text in texts]

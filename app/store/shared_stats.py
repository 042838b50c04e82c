"""Share learnt statistics between processes at each heartbeat, as decaying sums in Redis."""

import json
import time
import uuid
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any, Protocol, cast

import redis

from app.metrics import Change
from app.store.connect import Script
from app.store.keys import Keys

TTL_S = 30 * 86400.0  # of a group without writes
MARK_TTL_S = 600.0  # a batch whose reply was lost is sent again much earlier
MAX_FIELDS = 16_384  # of a group


class SharedStatsStore:
    """Thread-safe; every method raises StoreUnavailable."""

    def __init__(self, client: redis.Redis, namespace: str, *, ttl_s: float = TTL_S, max_fields: int = MAX_FIELDS):
        self._client = client
        self._keys = Keys(namespace)
        self._ttl_ms = int(ttl_s * 1000)
        self._max_fields = max_fields
        self._merge = Script(client, "merge")

    def load(self, group: str) -> dict[str, list[float]]:
        return _sums(cast(dict[str, str], self._client.hgetall(self._keys.sums(group))))

    def merge(self, group: str, writer: str, batch: int, changes: Mapping[str, Change]) -> dict[str, list[float]]:
        """Add a batch, and return the sums of its fields afterwards.

        A writer's batches in a group count up from 1; a repeated one counts once.
        """
        keys = [self._keys.sums(group), self._keys.merged(writer, group)]
        numbers = [self._max_fields, self._ttl_ms, int(MARK_TTL_S * 1000)]
        flat = self._merge(keys, [batch, json.dumps(changes), *numbers])
        return _sums(dict(zip(flat[::2], flat[1::2], strict=True)))


WRITE_EVERY_S = 1.0
LOAD_EVERY_S = 30.0  # for fields that this process does not write itself


class SharedStats(Protocol):
    """Groups of decaying sums in this process. The heartbeat's thread calls, other threads learn."""

    def groups(self) -> Iterable[str]: ...

    def changes(self, group: str) -> dict[str, Change]:
        """Take the changes since the last call, as (kept, added) by field; they stay known here."""
        ...

    def absorb(self, group: str, sums: Mapping[str, list[float]]) -> None:
        """Replace fields by the store's sums, which include all changes taken so far, plus those since."""
        ...


class StatsExchange:
    """Implements `HeartbeatTask`."""

    def __init__(self, learnt: SharedStats, store: SharedStatsStore) -> None:
        self._learnt = learnt
        self._store = store
        self._writer = uuid.uuid4().hex
        self._batches: dict[str, int] = {}  # sent so far, by group
        self._unsure: dict[str, dict[str, Change]] = {}  # sent, and not known to have arrived
        self._loaded_s: dict[str, float] = {}  # monotonic
        self._beaten_s = float("-inf")

    def beat(self) -> None:
        """Write changes and read the others', at most once in WRITE_EVERY_S. Raises StoreUnavailable."""
        now = time.monotonic()
        if now - self._beaten_s < WRITE_EVERY_S:
            return
        self._beaten_s = now
        for group in list(self._learnt.groups()):
            self._load(group, now)
            self._write(group)

    def close(self) -> None:
        for group in list(self._learnt.groups()):
            self._write(group)  # again what may not have arrived,
            self._write(group)  # then what was learnt since

    def _load(self, group: str, now: float) -> None:
        if group in self._unsure or now - self._loaded_s.get(group, float("-inf")) < LOAD_EVERY_S:
            return
        self._learnt.absorb(group, self._store.load(group))
        self._loaded_s[group] = now

    def _write(self, group: str) -> None:
        if group not in self._unsure:
            changes = self._learnt.changes(group)
            if not changes:
                return
            self._batches[group] = self._batches.get(group, 0) + 1
            self._unsure[group] = changes
        # Sent again after a lost reply it is the same batch under the same number: counted once.
        sums = self._store.merge(group, self._writer, self._batches[group], self._unsure[group])
        del self._unsure[group]
        self._learnt.absorb(group, sums)


def _sums(fields: Mapping[str, str]) -> dict[str, list[float]]:
    found = {field: _vector(text) for field, text in fields.items()}
    return {field: vector for field, vector in found.items() if vector is not None}


def _vector(text: str) -> list[float] | None:
    try:
        values: Any = json.loads(text)
        vector = [float(value) for value in values]
    except (ValueError, TypeError):
        return None
    return vector if all(isfinite(value) for value in vector) else None

"""Decaying sums that several processes learn together: groups of named vectors, each a field of a hash.

A writer sends what it saw since it last wrote, as (kept, added): the sum becomes sum * kept + added, in one script. So
two writers never overwrite each other, and what is stored is as if one had seen it all, the one's part after the
other's. A batch is counted once, however often it is sent.
"""

import json
from collections.abc import Mapping
from math import isfinite
from typing import Any, cast

import redis

from app.state import Change
from app.store.connect import Script
from app.store.keys import Keys

TTL_S = 30 * 86400.0  # of a group that nobody writes to
MARK_TTL_S = 600.0  # a batch whose reply was lost is sent again long before
MAX_FIELDS = 16_384  # of a group


class SumsStore:
    """The sums of all groups, in Redis."""

    def __init__(self, client: redis.Redis, namespace: str, *, ttl_s: float = TTL_S, max_fields: int = MAX_FIELDS):
        self._client = client
        self._keys = Keys(namespace)
        self._ttl_ms = int(ttl_s * 1000)
        self._max_fields = max_fields
        self._merge = Script(client, "merge")

    def load(self, group: str) -> dict[str, list[float]]:
        """All sums of a group."""
        return _sums(cast(dict[str, str], self._client.hgetall(self._keys.sums(group))))

    def merge(self, group: str, writer: str, batch: int, changes: Mapping[str, Change]) -> dict[str, list[float]]:
        """Add a batch; the sums of its fields as they are then. A writer's batches in a group count up from 1."""
        keys = [self._keys.sums(group), self._keys.merged(writer, group)]
        numbers = [self._max_fields, self._ttl_ms, int(MARK_TTL_S * 1000)]
        flat = self._merge(keys, [batch, json.dumps(changes), *numbers])
        return _sums(dict(zip(flat[::2], flat[1::2], strict=True)))


def _sums(fields: Mapping[str, str]) -> dict[str, list[float]]:
    """The readable ones: another version may have written something else."""
    found = {field: _vector(text) for field, text in fields.items()}
    return {field: vector for field, vector in found.items() if vector is not None}


def _vector(text: str) -> list[float] | None:
    try:
        values: Any = json.loads(text)
        vector = [float(value) for value in values]
    except (ValueError, TypeError):
        return None
    return vector if all(isfinite(value) for value in vector) else None

"""Where requests of Celery tasks wait while the deployment is full: a list, the first to come in front.

An item is removed only after what became of it is written down: a crash in between does it again, and admitting
a known request changes nothing.
"""

import redis

from app.errors import QueueFull
from app.store.keys import Keys
from app.store.protocol import RETRY_AFTER_S

MAX_WAITING = 10_000  # beyond it tasks are turned away


class WaitingRoom:
    """Items are JSON; what is in them is the callers' business."""

    def __init__(self, client: redis.Redis, namespace: str) -> None:
        self._client = client
        self._key = Keys(namespace).waiting

    def put(self, item: str) -> None:
        """Queue up. Raises QueueFull, StoreUnavailable."""
        waiting = len(self)
        if waiting >= MAX_WAITING:
            raise QueueFull(waiting, RETRY_AFTER_S)
        self._client.rpush(self._key, item)

    def first(self) -> str | None:
        """Who has waited longest; None when nobody waits."""
        found = self._client.lindex(self._key, 0)
        return None if found is None else str(found)

    def remove(self, item: str) -> None:
        """It has been dealt with."""
        self._client.lrem(self._key, 1, item)

    def __len__(self) -> int:
        return int(self._client.llen(self._key))

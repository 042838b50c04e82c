"""Queue requests of Celery tasks while the deployment is full, count their deliveries, and store their progress.

An item is removed after its outcome is stored: a crash in between repeats it, which changes nothing.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import redis

from app.errors import QueueFull
from app.messages import Status
from app.store.connect import Script
from app.store.keys import Keys
from app.store.protocol import RETRY_AFTER_S

DELIVERY_TTL_S = 24 * 3600.0  # a message that lies for longer is counted anew
MAX_WAITING = 10_000  # past it tasks are refused
NORMAL = "normal"
PRIORITIES = ("high", NORMAL, "low")  # the first goes before the others


class WaitingRoom:
    """A queue of JSON items for each priority. Any thread may call."""

    def __init__(self, client: redis.Redis, namespace: str) -> None:
        self._client = client
        self._lists = {priority: Keys(namespace).waiting(priority) for priority in PRIORITIES}

    def put(self, item: str, priority: str = NORMAL) -> None:
        waiting = len(self)
        if waiting >= MAX_WAITING:
            raise QueueFull(waiting, RETRY_AFTER_S)
        self._client.rpush(self._lists[priority], item)

    def first(self, priority: str = NORMAL) -> str | None:
        found = self._client.lindex(self._lists[priority], 0)
        return None if found is None else str(found)

    def items(self) -> list[tuple[str, str]]:
        lists = {priority: self._client.lrange(key, 0, -1) for priority, key in self._lists.items()}
        return [(priority, str(item)) for priority, items in lists.items() for item in items]

    def remove(self, item: str, priority: str = NORMAL) -> None:
        self._client.lrem(self._lists[priority], 1, item)

    def before(self, priority: str) -> int:
        return sum(self._lengths()[: PRIORITIES.index(priority) + 1])

    def __len__(self) -> int:
        return sum(self._lengths())

    def _lengths(self) -> list[int]:
        pipe = self._client.pipeline(transaction=False)
        for key in self._lists.values():
            pipe.llen(key)
        return [int(length) for length in pipe.execute()]


class Deliveries:
    """Count the processes that died while they read a Celery task. Every method raises StoreUnavailable."""

    def __init__(self, client: redis.Redis, namespace: str) -> None:
        self._client = client
        self._keys = Keys(namespace)
        self._deliver = Script(client, "deliver")

    @contextmanager
    def held(self, task_id: str, owner: str) -> Iterator[int]:
        """Give the number of deaths; only a death of `owner` in this block adds one."""
        key = self._keys.delivery(task_id)
        try:
            yield int(self._deliver([key], [owner, self._keys.lease(""), int(DELIVERY_TTL_S * 1000)]))
        finally:
            self._client.delete(key)


class ProgressStore:
    """The progress of tasks, where Celery looks for it. Every method raises StoreUnavailable."""

    def __init__(self, client: redis.Redis, namespace: str) -> None:
        self._client = client
        self._keys = Keys(namespace)
        self._tell = Script(client, "tell")

    def tokens(self, request_ids: Sequence[str]) -> dict[str, int]:
        pipe = self._client.pipeline(transaction=False)
        for request_id in request_ids:
            pipe.hmget(self._keys.request(request_id), "status", "length")
        found = zip(request_ids, pipe.execute() if request_ids else [], strict=True)
        return {request_id: int(length) for request_id, (status, length) in found if status == Status.ACTIVE}

    def tell(self, request_id: str, key: str, text: str, ttl_s: int) -> bool:
        return bool(self._tell([self._keys.request(request_id), key], [text, ttl_s]))

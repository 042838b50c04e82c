"""How far requests of Celery tasks are, and telling those who wait for them: only while a request is active, in one
script with that look, so that what was said at its end is never overwritten."""

from collections.abc import Sequence

import redis

from app.messages import Status
from app.store.connect import Script
from app.store.keys import Keys


class ProgressStore:
    """Reads requests and writes a task's state, where Celery looks for it."""

    def __init__(self, client: redis.Redis, namespace: str) -> None:
        self._client = client
        self._keys = Keys(namespace)
        self._tell = Script(client, "tell")

    def tokens(self, request_ids: Sequence[str]) -> dict[str, int]:
        """Tokens generated so far, of those that are active. Raises StoreUnavailable."""
        pipe = self._client.pipeline(transaction=False)
        for request_id in request_ids:
            pipe.hmget(self._keys.request(request_id), "status", "length")
        found = zip(request_ids, pipe.execute() if request_ids else [], strict=True)
        return {request_id: int(length) for request_id, (status, length) in found if status == Status.ACTIVE}

    def tell(self, request_id: str, key: str, text: str, ttl_s: int) -> bool:
        """Set `key` and publish on it, as Celery's backend does, unless the request has ended. Raises
        StoreUnavailable."""
        return bool(self._tell([self._keys.request(request_id), key], [text, ttl_s]))

"""Keep samples of the deployment's load over the last minutes."""

import json
from typing import Any, cast

import redis

from app.store.keys import Keys

MOST = 900  # a quarter of an hour at one a second
TTL_S = 3600.0


class History:
    """Load samples in Redis. Thread-safe; every method raises StoreUnavailable."""

    def __init__(self, client: redis.Redis, namespace: str) -> None:
        self._client = client
        self._key = Keys(namespace).samples

    def add(self, sample: dict[str, Any]) -> None:
        pipe = self._client.pipeline(transaction=True)
        pipe.rpush(self._key, json.dumps(sample))
        pipe.ltrim(self._key, -MOST, -1)
        pipe.pexpire(self._key, int(TTL_S * 1000))
        pipe.execute()

    def last(self, count: int) -> list[dict[str, Any]]:
        """Oldest first."""
        return [json.loads(text) for text in cast(list[str], self._client.lrange(self._key, -count, -1))]

"""Bound each API key's requests, counted in Redis for all web processes.

The rate is a moving window (the library `limits`). Concurrency is the number of the key's active requests.
"""

import math
import time
from collections.abc import Sequence

import redis
from limits import RateLimitItemPerMinute
from limits.storage import RedisStorage
from limits.strategies import MovingWindowRateLimiter

from app.api_keys import ApiKey
from app.errors import InvalidRequest, OverLimit
from app.store.connect import Script, translating
from app.store.keys import Keys
from app.store.protocol import RETRY_AFTER_S

RESERVED_S = 10.0  # a place's time to live while its request is admitted; a web process may die meanwhile


class RateLimits:
    """A key without bounds costs no round trip. Thread-safe."""

    def __init__(self, client: redis.Redis, namespace: str, *, active_ttl_s: float) -> None:
        self._client = client
        self._keys = Keys(namespace)
        self._ttl_ms = int(active_ttl_s * 1000)
        # A client of its own over the same connections, which are made on first use.
        storage = RedisStorage(
            "redis://", connection_pool=client.connection_pool, key_prefix=self._keys.rates, wrap_exceptions=False
        )
        self._window = MovingWindowRateLimiter(storage)
        self._hold = Script(client, "hold")

    def take(self, key: ApiKey, request_ids: Sequence[str]) -> None:
        """Count requests before they are stored; call `stored` or `give_back` afterwards.

        Raises OverLimit (nothing is counted then), InvalidRequest (waiting would not help), StoreUnavailable.
        """
        bounds = [bound for bound in (key.concurrent, key.rate_per_minute) if bound is not None]
        if bounds and len(request_ids) > min(bounds):
            raise InvalidRequest("n", f"this API key allows at most {min(bounds)} texts a call, not {len(request_ids)}")
        if key.concurrent is not None:
            args = [key.concurrent, int(RESERVED_S * 1000), self._ttl_ms, *request_ids]
            if not self._hold([self._keys.held(key.name), self._keys.active], args):
                raise OverLimit(f"at most {key.concurrent} texts at once", RETRY_AFTER_S)
        if key.rate_per_minute is not None:
            try:
                self._count(key.name, key.rate_per_minute, len(request_ids))
            except OverLimit:
                self.give_back(key, request_ids)
                raise

    def stored(self, key: ApiKey, request_ids: Sequence[str]) -> None:
        """Let stored requests count until they end. Raises StoreUnavailable."""
        if key.concurrent is not None:
            pipe = self._client.pipeline(transaction=True)
            pipe.zadd(self._keys.held(key.name), dict.fromkeys(request_ids, 0))
            pipe.pexpire(self._keys.held(key.name), self._ttl_ms)
            pipe.execute()

    def give_back(self, key: ApiKey, request_ids: Sequence[str]) -> None:
        if key.concurrent is not None:
            self._client.zrem(self._keys.held(key.name), *request_ids)

    def _count(self, name: str, most: int, texts: int) -> None:
        rate = RateLimitItemPerMinute(most)
        with translating():
            if self._window.hit(rate, name, cost=texts):
                return
            free_s = self._window.get_window_stats(rate, name).reset_time
        raise OverLimit(f"at most {most} texts a minute", max(1.0, math.ceil(free_s - time.time())))

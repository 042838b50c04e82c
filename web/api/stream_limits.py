"""Bound the long calls of this process, each of which holds a thread.

A request's first stream is always allowed, since PACELINE_MAX_ACTIVE_REQUESTS bounds those.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from app.errors import TooManyReaders


class StreamLimits:
    def __init__(self, most: int, each: int) -> None:
        """Allow `most` streams beside the first of each request, at most `each` for one tenant."""
        self._most, self._each = most, each
        self._lock = threading.Lock()
        self._calls: Counter[str] = Counter()  # by request
        self._more: Counter[str] = Counter()  # calls beside the first of each request, by tenant

    def take(self, request_id: str, tenant: str) -> Callable[[], None]:
        """Count a stream until the returned function is called, once. Raises TooManyReaders."""
        with self._lock:
            if self._calls[request_id]:
                if self._more.total() >= self._most or self._more[tenant] >= self._each:
                    raise TooManyReaders(self._most, self._each)
                self._more[tenant] += 1
            self._calls[request_id] += 1
        return partial(self._release, request_id, tenant)

    @contextmanager
    def taken(self, request_id: str, tenant: str) -> Iterator[None]:
        release = self.take(request_id, tenant)
        try:
            yield
        finally:
            release()

    def _release(self, request_id: str, tenant: str) -> None:
        with self._lock:
            self._calls[request_id] -= 1
            if self._calls[request_id]:  # one of the readers left is the first now
                self._more[tenant] -= 1
            else:
                del self._calls[request_id]

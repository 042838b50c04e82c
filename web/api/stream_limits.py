"""Who holds a thread of this process for long: calls that wait for a text, and streams.

The first of them for a request always finds a seat: requests under way are bounded (PACELINE_MAX_ACTIVE_REQUESTS), and
the server has a thread for each. More readers of the same requests are bounded here, or a few requests, followed again
and again, would take every thread. In memory: the threads are this process's own, and gone with it.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from app.errors import TooManyReaders


class StreamLimits:
    """Of one process, for all its calls."""

    def __init__(self, most: int, each: int) -> None:
        """`most` readers beside the first of each request, at most `each` for one tenant."""
        self._most, self._each = most, each
        self._lock = threading.Lock()
        self._calls: Counter[str] = Counter()  # by request
        self._more: Counter[str] = Counter()  # calls beside the first of each request, by tenant

    def take(self, request_id: str, tenant: str) -> Callable[[], None]:
        """A seat, until the result is called, once. Raises TooManyReaders."""
        with self._lock:
            if self._calls[request_id]:
                if self._more.total() >= self._most or self._more[tenant] >= self._each:
                    raise TooManyReaders(self._most, self._each)
                self._more[tenant] += 1
            self._calls[request_id] += 1
        return partial(self._leave, request_id, tenant)

    @contextmanager
    def taken(self, request_id: str, tenant: str) -> Iterator[None]:
        """A seat for the block. Raises TooManyReaders."""
        leave = self.take(request_id, tenant)
        try:
            yield
        finally:
            leave()

    def _leave(self, request_id: str, tenant: str) -> None:
        with self._lock:
            self._calls[request_id] -= 1
            if self._calls[request_id]:  # whoever is left, one of them is the first now
                self._more[tenant] -= 1
            else:
                del self._calls[request_id]

"""Retry a step that ran out of memory: that is the machine's state, not the request's fault.

A batch is split first (its sequences run one by one); this is about a request that runs alone.
"""

import time

from app.clock import SYSTEM, Clock

PATIENCE_S = 5.0
PAUSE_S = 0.1  # there is nothing else that a verifier without memory could do
OUT_OF_MEMORY_TEXTS = (  # by torch on a GPU and on a CPU, and by oneDNN, which does not name it
    "out of memory",
    "allocate memory",
    "could not create a primitive",
    "could not create a memory",
    "could not execute a primitive",
)


def is_out_of_memory(error: Exception) -> bool:
    """Tell whether the error is for want of memory."""
    return isinstance(error, MemoryError) or any(text in str(error).lower() for text in OUT_OF_MEMORY_TEXTS)


class OutOfMemoryRetry:
    """Remember since when each request has found no memory."""

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._since_s: dict[str, float] = {}

    def may_try_again(self, request_id: str, error: Exception) -> bool:
        """Tell whether a request failed for memory alone, and not for long yet; pauses, so that others release some."""
        if not is_out_of_memory(error):
            return False
        now_s = self._clock.monotonic()
        if now_s - self._since_s.setdefault(request_id, now_s) >= PATIENCE_S:
            return False
        time.sleep(PAUSE_S)
        return True

    def remove(self, request_id: str) -> None:
        """Remove a request that got on, or ended."""
        self._since_s.pop(request_id, None)

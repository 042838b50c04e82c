"""Decide whether to retry a step that ran out of memory, which is not the request's fault.

A batch is split first: its sequences run one by one. This is for a request that runs alone.
"""

import time

from app.clock import SYSTEM, Clock

PATIENCE_S = 5.0
PAUSE_S = 0.1  # a verifier without memory has nothing else to do
OUT_OF_MEMORY_TEXTS = (  # of torch on a GPU and on a CPU, and of oneDNN, which is vague
    "out of memory",
    "allocate memory",
    "could not create a primitive",
    "could not create a memory",
    "could not execute a primitive",
)


def is_out_of_memory(error: Exception) -> bool:
    """Tell whether the error is a lack of memory."""
    return isinstance(error, MemoryError) or any(text in str(error).lower() for text in OUT_OF_MEMORY_TEXTS)


class OutOfMemoryRetry:
    """Remember since when each request has lacked memory."""

    def __init__(self, clock: Clock = SYSTEM) -> None:
        """Measure patience by this clock's monotonic time."""
        self._clock = clock
        self._since_s: dict[str, float] = {}

    def may_try_again(self, request_id: str, error: Exception) -> bool:
        """Tell whether a request lacks memory and has not for PATIENCE_S; then pause first.

        Other processes may release some meanwhile. Blocks for PAUSE_S.
        """
        if not is_out_of_memory(error):
            return False
        now_s = self._clock.monotonic()
        if now_s - self._since_s.setdefault(request_id, now_s) >= PATIENCE_S:
            return False
        time.sleep(PAUSE_S)
        return True

    def remove(self, *request_ids: str) -> None:
        """Remove requests that committed or ended."""
        if self._since_s:
            for request_id in request_ids:
                self._since_s.pop(request_id, None)

"""How busy a process is: the part of the last seconds in which it worked."""

import threading

DECAY = 0.6  # of the past with each look; a pulse looks twice a second


class BusyShare:
    """One thread tells when it begins and ends a piece of work, another looks. All times are monotonic seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worked_s = 0.0  # since the last look
        self._since_s: float | None = None  # of the work under way, or since the last look at it
        self._looked_s: float | None = None
        self._share = 0.0

    def toggle(self, is_busy: bool, now_s: float) -> None:
        """A piece of work begins, or has ended."""
        with self._lock:
            self._count(now_s)
            self._since_s = now_s if is_busy else None

    def spare(self) -> None:
        """The work under way is none that anybody waits for: it does not count."""
        with self._lock:
            self._since_s = None

    def look(self, now_s: float) -> float:
        """The part of the time, 0 ... 1, the last second weighing most."""
        with self._lock:
            self._count(now_s)
            if self._looked_s is not None and now_s > self._looked_s:
                part = min(1.0, self._worked_s / (now_s - self._looked_s))
                self._share = DECAY * self._share + (1.0 - DECAY) * part
            self._looked_s, self._worked_s = now_s, 0.0
            return self._share

    def _count(self, now_s: float) -> None:
        if self._since_s is not None:
            self._worked_s += now_s - self._since_s
            self._since_s = now_s

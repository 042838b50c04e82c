"""Report progress on standard error: a bar on a terminal, a line every EVERY_S seconds elsewhere."""

import sys
import time

from app.local.progress_line import ProgressLine

EVERY_S = 20.0  # between lines where no line can be rewritten
WIDTH = 24


class Report:
    """Count to `total`; what was `done` before is part of the bar, but not of the pace.

    `total` may be set later: None while it is unknown.
    """

    def __init__(self, title: str, total: int | None, done: int = 0) -> None:
        self._title, self.total = title, total
        self._done = self._first = done
        self._started = time.monotonic()
        self._printed_s = 0.0
        self._line = ProgressLine() if sys.stderr.isatty() else None

    def advance(self, text: str = "") -> None:
        """Count one more as done; `text` describes it."""
        self._done += 1
        is_last = self._done == self.total
        now = time.monotonic()
        if self._line is not None:
            self._line(self._text(now, text))
            if is_last:
                self._line.end()
        elif is_last or now - self._printed_s >= EVERY_S:
            self._printed_s = now
            print(self._text(now, text), file=sys.stderr, flush=True)

    def end(self) -> None:
        """End the terminal's line, however far the count is."""
        if self._line is not None:
            self._line.end()

    def _text(self, now: float, text: str) -> str:
        pace_s = (now - self._started) / (self._done - self._first)
        if self.total is None:
            return f"{self._title} {self._done}  {text}"
        full = WIDTH * self._done // self.total
        left_s = pace_s * (self.total - self._done)
        bar = "#" * full + "." * (WIDTH - full)
        return f"{self._title} [{bar}] {self._done}/{self.total}  {text}  {_duration(left_s)} left"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"

"""How far long work is, on standard error: a bar that moves on a terminal, a line now and then elsewhere."""

import sys
import time

from app.local.progress_line import ProgressLine

EVERY_S = 20.0  # between lines where nothing can be rewritten
WIDTH = 24


class Report:
    """Counts to `total`; what was `done` before is part of the bar and not of the pace."""

    def __init__(self, title: str, total: int | None, done: int = 0) -> None:
        self._title, self.total = title, total
        self._done = self._first = done
        self._started = time.monotonic()
        self._said = 0.0
        self._line = ProgressLine() if sys.stderr.isatty() else None

    def advance(self, text: str = "") -> None:
        """One more is done; `text` says something of it."""
        self._done += 1
        is_last = self._done == self.total
        now = time.monotonic()
        if self._line is not None:
            self._line(self._text(now, text))
            if is_last:
                self._line.end()
        elif is_last or now - self._said >= EVERY_S:
            self._said = now
            print(self._text(now, text), file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leave the terminal's line clean, however far the work came."""
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

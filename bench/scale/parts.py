"""Measure the seconds of parts of a running process: functions are wrapped, and each second counts for
the innermost part alone. In the main thread, where a worker's rounds are; others are left alone."""

import functools
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Parts:
    """The seconds and calls by part, of the main thread."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}
        self._thread = threading.main_thread().ident
        self._inner_s: list[float] = []  # of each part under way: seconds in parts inside it

    def wrap(self, part: str, owner: Any, *names: str) -> None:
        """Measure these functions of a module or class as one part, from now on."""
        for name in names:
            setattr(owner, name, self._timed(part, getattr(owner, name)))

    def _timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        self.seconds.setdefault(part, 0.0)
        self.calls.setdefault(part, 0)

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._thread:
                return function(*args, **kwargs)
            began_s = time.perf_counter()
            self._inner_s.append(0.0)
            try:
                return function(*args, **kwargs)
            finally:
                took_s = time.perf_counter() - began_s
                self.seconds[part] += took_s - self._inner_s.pop()
                self.calls[part] += 1
                if self._inner_s:
                    self._inner_s[-1] += took_s

        return timed


def write(path: Path, values: dict[str, Any]) -> None:
    """Replace a file of JSON whole: another process reads it at any time."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(values))
    new.replace(path)

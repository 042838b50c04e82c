"""A line on standard error that says what goes on. Standard output stays clean for results."""

import re
import shutil
import sys
from collections.abc import Callable


def progress_line() -> Callable[[str], None]:
    """A function to call with the present state, as often as one likes.

    On a terminal the line is rewritten in place; elsewhere one is written when more than its numbers change.
    """
    return _rewrite if sys.stderr.isatty() else _Log()


def end_line() -> None:
    """Clear the line, before something else is printed."""
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def _rewrite(text: str) -> None:
    width = shutil.get_terminal_size().columns - 1
    sys.stderr.write("\r\x1b[K" + text.replace("\n", " ")[:width])
    sys.stderr.flush()


class _Log:
    def __init__(self) -> None:
        self._last = ""

    def __call__(self, text: str) -> None:
        words = re.sub(r"\d+", "", text)
        if words != self._last:
            print(text, file=sys.stderr, flush=True)
        self._last = words

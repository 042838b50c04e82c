"""A line on standard error that says what goes on. Standard output stays clean for results."""

import re
import shutil
import sys


class ProgressLine:
    """Call it with the present state, as often as you like.

    On a terminal the line is rewritten in place; elsewhere one is written when more than its numbers change.
    """

    def __init__(self) -> None:
        self._rewrites = sys.stderr.isatty()
        self._shown = ""

    def __call__(self, text: str) -> None:
        """Show this."""
        if self._rewrites:
            width = shutil.get_terminal_size().columns - 1
            self._write("\r\x1b[K" + text.replace("\n", " ")[:width])
        elif _words(text) != _words(self._shown):
            self._write(text + "\n")
        self._shown = text

    def end(self) -> None:
        """Clear the line if one is shown, before something else is printed."""
        if self._rewrites and self._shown:
            self._write("\r\x1b[K")
        self._shown = ""

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


def _words(text: str) -> str:
    return re.sub(r"\d+", "", text)

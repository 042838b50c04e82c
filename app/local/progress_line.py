"""Show progress in a line on standard error. Standard output holds results alone."""

import re
import shutil
import sys


class ProgressLine:
    """Show the present state at each call.

    On a terminal the line is rewritten in place; elsewhere a new line is written if more than numbers change.
    """

    def __init__(self) -> None:
        self._rewrites = sys.stderr.isatty()
        self._shown = ""

    def __call__(self, text: str) -> None:
        if self._rewrites:
            width = shutil.get_terminal_size().columns - 1
            self._write("\r\x1b[K" + text.replace("\n", " ")[:width])
        elif _words(text) != _words(self._shown):
            self._write(text + "\n")
        self._shown = text

    def end(self) -> None:
        """Clear the line, before other output."""
        if self._rewrites and self._shown:
            self._write("\r\x1b[K")
        self._shown = ""

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


def _words(text: str) -> str:
    return re.sub(r"\d+", "", text)

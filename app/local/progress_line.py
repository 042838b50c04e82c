"""Show progress in a line on standard error. Standard output holds results alone."""

import shutil
import sys
import time

EVERY_S = 5.0  # between two lines of one kind, where they are not rewritten


class ProgressLine:
    """Show the present state at each call.

    On a terminal the line is rewritten in place; elsewhere a new line is written for another kind of state, by its
    first word, or when it has changed after EVERY_S.
    """

    def __init__(self) -> None:
        self._rewrites = sys.stderr.isatty()
        self._shown = ""
        self._shown_s = -EVERY_S

    def __call__(self, text: str) -> None:
        if self._rewrites:
            width = shutil.get_terminal_size().columns - 1
            self._write("\r\x1b[K" + text.replace("\n", " ")[:width])
        elif text != self._shown:
            is_other = text.split()[:1] != self._shown.split()[:1]
            if not is_other and time.monotonic() - self._shown_s < EVERY_S:
                return
            self._write(text + "\n")
            self._shown_s = time.monotonic()
        self._shown = text

    def end(self) -> None:
        """Clear the line, before other output."""
        if self._rewrites and self._shown:
            self._write("\r\x1b[K")
        self._shown = ""

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()

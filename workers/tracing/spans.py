"""Who was busy when: spans of work, appended to a file for each process when the settings name a folder for them.

One JSON object a line: `node`, `kind`, `start_s` and `end_s` (wall clock), `sequences` (in the batch; 0: not said).
Nothing is written from the thread that works: the heartbeat's does it. `bench/timeline.py` draws the files.
"""

import json
import os
import time
from collections import deque
from pathlib import Path

MOST_KEPT = 65_536  # spans between two flushes; far more than a heartbeat's period can hold


class Spans:
    """The spans of one process, for one thread that works and one that flushes."""

    def __init__(self, folder: Path, kind: str, node: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / f"{node}-{os.getpid()}.jsonl"
        self._names = {"node": node, "kind": kind}
        self._waiting = deque[tuple[float, float, int]](maxlen=MOST_KEPT)
        self._start_s = 0.0
        self.sequences = 0  # in the batch under way

    def toggle(self, is_busy: bool) -> None:
        """A piece of work begins now, or the one that began last has ended."""
        now_s = time.time()
        if is_busy:
            self._start_s, self.sequences = now_s, 0
        else:
            self._waiting.append((self._start_s, now_s, self.sequences))

    def flush(self) -> None:
        """Append what waits to the file."""
        if not self._waiting:
            return
        with self._file.open("a", encoding="utf-8") as file:
            while self._waiting:
                start_s, end_s, sequences = self._waiting.popleft()
                span = {**self._names, "start_s": start_s, "end_s": end_s, "sequences": sequences}
                file.write(json.dumps(span) + "\n")

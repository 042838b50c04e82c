"""Share the target's memory between sequences, and retry a step that ran out of it."""

import time
from collections.abc import Mapping
from operator import attrgetter

from msgspec.structs import replace

from app.clock import SYSTEM, Clock
from app.engine.target import Target
from app.state import NO_TREE, BatchEntry, Sequence

PATIENCE_S = 5.0
PAUSE_S = 0.1  # a verifier without memory has nothing else to do
OUT_OF_MEMORY_TEXTS = (  # of torch on a GPU and on a CPU, and of oneDNN, which is vague
    "out of memory",
    "allocate memory",
    "could not create a primitive",
    "could not create a memory",
    "could not execute a primitive",
)


def reserve(entries: list[BatchEntry], target: Target, sequences: Mapping[str, Sequence]) -> list[BatchEntry]:
    """Return the entries that get memory, some of them without their tree.

    `sequences`: all that the target caches, by request. Short of memory, trees go first, then the youngest sequences'
    pages: by age no two sequences preempt each other in turn.
    """
    made: dict[str, BatchEntry] = {}
    for entry in sorted(entries, key=lambda entry: sequences[entry.sequence.id].age):
        if entry.sequence.cached != entry.start:
            continue  # an older one took its pages
        reserved = _try_reserve(entry, target, sequences)
        if reserved is not None:
            made[entry.sequence.id] = reserved
    return [made[entry.sequence.id] for entry in entries if entry.sequence.id in made]


def _try_reserve(entry: BatchEntry, target: Target, sequences: Mapping[str, Sequence]) -> BatchEntry | None:
    while not target.try_reserve(entry):
        own = sequences[entry.sequence.id].age
        younger = [s for s in sequences.values() if s.kv.pages and s.age > own]
        if len(entry.tree):
            entry = replace(entry, tree=NO_TREE)
        elif younger:
            target.release(max(younger, key=attrgetter("age")).kv)  # its prefix will be computed again
        else:
            return None
    return entry


def is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or any(text in str(error).lower() for text in OUT_OF_MEMORY_TEXTS)


class OutOfMemoryRetry:
    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._since_s: dict[str, float] = {}

    def may_try_again(self, request_id: str, error: Exception) -> bool:
        """Tell whether a request has lacked memory for less than PATIENCE_S; then block for PAUSE_S first."""
        if not is_out_of_memory(error):
            return False
        now_s = self._clock.monotonic()
        if now_s - self._since_s.setdefault(request_id, now_s) >= PATIENCE_S:
            return False
        time.sleep(PAUSE_S)
        return True

    def remove(self, *request_ids: str) -> None:
        if self._since_s:
            for request_id in request_ids:
                self._since_s.pop(request_id, None)

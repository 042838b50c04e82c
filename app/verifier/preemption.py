"""Reserve the pages of a batch; where they run short, trees and younger sequences give theirs up."""

from collections.abc import Mapping

from app.engine.target import Target
from app.state import BatchEntry, Sequence, Tree


def reserve(works: list[BatchEntry], memory: Target, sequences: Mapping[str, Sequence]) -> list[BatchEntry]:
    """Return the entries that get memory. Short of it, trees go first, then the youngest sequences' caches.

    Memory goes by age, so the oldest sequence always gets on, and no two take each other's cache in turn.
    """
    kept: set[str] = set()
    for work in sorted(works, key=lambda work: _age(sequences[work.sequence.id])):
        # else it lost its cache to an older one
        if work.sequence.cached == work.start and _try_reserve(work, memory, sequences):
            kept.add(work.sequence.id)
    return [work for work in works if work.sequence.id in kept]


def _try_reserve(work: BatchEntry, memory: Target, sequences: Mapping[str, Sequence]) -> bool:
    own = _age(sequences[work.sequence.id])
    while not memory.try_reserve(work):
        younger = [s for s in sequences.values() if s.kv.pages and _age(s) > own]
        if len(work.tree):
            work.tree = Tree()
        elif younger:
            memory.release(max(younger, key=_age).kv)  # its prefix will be computed again
        else:
            return False
    return True


def _age(sequence: Sequence) -> tuple[float, str]:
    """Sorts the oldest first."""
    return sequence.record.created_s, sequence.record.id

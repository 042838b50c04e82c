"""Who gets memory of a batch's works, and who gives it up."""

from collections.abc import Collection

from app.engine.target import Target
from app.state import BatchEntry, Sequence, Tree


def reserve(works: list[BatchEntry], memory: Target, sequences: Collection[Sequence]) -> list[BatchEntry]:
    """Those of the works that get memory. Short of it, trees go first, then the youngest sequences' caches.

    Memory goes by age, so the oldest sequence always gets on, and no two take each other's cache in turn.
    """
    kept: set[str] = set()
    for work in sorted(works, key=lambda work: _age(work.sequence)):
        # else it lost its cache to an older one
        if work.sequence.cached == work.start and _try_reserve(work, memory, sequences):
            kept.add(work.sequence.record.id)
    return [work for work in works if work.sequence.record.id in kept]


def _try_reserve(work: BatchEntry, memory: Target, sequences: Collection[Sequence]) -> bool:
    while not memory.try_reserve(work):
        younger = [s for s in sequences if s.pages and _age(s) > _age(work.sequence)]
        if len(work.tree):
            work.tree = Tree()
        elif younger:
            memory.release(max(younger, key=_age))  # its prefix will be computed again
        else:
            return False
    return True


def _age(sequence: Sequence) -> tuple[float, str]:
    """Sorts the oldest first."""
    return sequence.record.created_s, sequence.record.id

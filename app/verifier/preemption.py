"""Reserve memory for a batch by age: the oldest sequence always progresses."""

from collections.abc import Mapping
from operator import attrgetter

from msgspec.structs import replace

from app.engine.target import Target
from app.state import NO_TREE, BatchEntry, Sequence


def reserve(entries: list[BatchEntry], target: Target, sequences: Mapping[str, Sequence]) -> list[BatchEntry]:
    """Return the entries that get memory, some of them without their tree.

    `sequences` are all that the target caches, by request. Short of memory, trees go first, then
    the youngest sequences' pages. As age decides, no two sequences preempt each other in turn.
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

"""View a row's history and count its tokens, without a copy."""

from collections import Counter
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Listed
from dataclasses import dataclass, field
from itertools import chain
from typing import overload

from app.state import CachedSequence


class TokenHistory(Listed[int]):
    __slots__ = ("_added", "_known")

    def __init__(self, known: Listed[int], added: Listed[int]) -> None:
        self._known, self._added = known, added

    def __len__(self) -> int:
        return len(self._known) + len(self._added)

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> list[int]: ...

    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step == 1:
                own = len(self._known)
                return [*self._known[start:stop], *self._added[max(0, start - own) : max(0, stop - own)]]
        return [*self._known, *self._added][index]

    def __iter__(self) -> Iterator[int]:
        return chain(self._known, self._added)


@dataclass(slots=True)
class _Counted:
    sequence: CachedSequence  # kept, so that no other gets its id
    length: int = 0
    counts: Counter[int] = field(default_factory=Counter)


class TokenCounts:
    def __init__(self) -> None:
        self._counted: dict[int, _Counted] = {}  # by the sequence's id()

    def of(self, sequence: CachedSequence) -> Mapping[int, int]:
        """The result changes at the next call."""
        found = self._counted.get(id(sequence))
        if found is None:
            found = self._counted[id(sequence)] = _Counted(sequence)
        found.counts.update(sequence.tokens[found.length :])
        found.length = len(sequence.tokens)
        return found.counts

    def forget(self, sequence: CachedSequence) -> None:
        self._counted.pop(id(sequence), None)

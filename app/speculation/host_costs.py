"""Learn the host costs: the seconds of a step beside the target's, and how many of them a tree adds.

What composing, walking, committing and learning take goes in; what a tree costs of that comes out.
Knows no clock. For one thread.
"""

from collections import deque
from typing import Final

RECENT = 9  # observations whose median is taken
FEWEST = 2  # trees' observations before any counts


class HostCosts:
    """The host's seconds of steps without trees, by the size of the batch, and those that a tree adds.

    Medians of the last few steps: the first step with a tree loads tables and code, and a process may pause. With a
    mean, one such step would make trees look dear, and none would be asked for that could show otherwise.
    """

    def __init__(self) -> None:
        self._plain: dict[int, _Median] = {}  # batch size class -> a sequence's seconds
        self._tree: Final = _Median()

    @property
    def tree_s(self) -> float:
        """Return the seconds that a tree adds to a step; 0 before a few steps of both kinds have been seen."""
        return self._tree.value if self._tree.count >= FEWEST else 0.0

    def update(self, sequences: int, trees: int, seconds: float) -> None:
        """Learn that the host took `seconds` for a step of so many sequences, some with a tree."""
        if sequences < 1 or not 0.0 <= seconds < float("inf"):
            return
        size = sequences.bit_length()
        if not trees:
            self._plain.setdefault(size, _Median()).add(seconds / sequences)
        elif self._plain:
            nearest = min(self._plain, key=lambda known: (abs(known - size), known))
            self._tree.add(max(0.0, seconds - sequences * self._plain[nearest].value) / trees)


class _Median:
    """The median of the last few values, of two in the middle the lesser; 0 before there is any."""

    __slots__ = ("_recent", "value")

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=RECENT)
        self.value = 0.0

    @property
    def count(self) -> int:
        return len(self._recent)

    def add(self, value: float) -> None:
        self._recent.append(value)
        self.value = sorted(self._recent)[(len(self._recent) - 1) // 2]

"""Learn the seconds of a step beside the target's, and how many of them a tree adds."""

from typing import Final

from app.recent import RecentMedian

FEWEST = 2  # observations of trees before any counts


class HostCosts:
    """Medians of the host's seconds, since the first step with a tree also loads tables and code."""

    def __init__(self) -> None:
        self._plain: dict[int, RecentMedian] = {}  # batch size class -> a sequence's seconds
        self._tree: Final = RecentMedian()

    @property
    def tree_s(self) -> float:
        """Return the seconds that a tree adds; 0 before a few steps of both kinds."""
        return self._tree.value if self._tree.count >= FEWEST else 0.0

    def plain_s(self, sequences: int) -> float:
        """Return the seconds of a step without trees; 0 before there was one."""
        return sequences * self._each_s(sequences.bit_length()) if self._plain else 0.0

    def update(self, sequences: int, trees: int, seconds: float) -> None:
        if sequences < 1 or not 0.0 <= seconds < float("inf"):
            return
        size = sequences.bit_length()
        if not trees:
            self._plain.setdefault(size, RecentMedian()).add(seconds / sequences)
        elif self._plain:
            self._tree.add(max(0.0, seconds - sequences * self._each_s(size)) / trees)

    def _each_s(self, size: int) -> float:
        return self._plain[min(self._plain, key=lambda known: (abs(known - size), known))].value

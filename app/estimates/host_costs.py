"""Learn the host costs: the seconds of a step beside the target's, and how many of them a tree adds.

What composing, walking, committing and learning take goes in; what a tree costs of that comes out.
Knows no clock. For one thread.
"""

from app.estimates.step_costs import DECAY

MAX_JUMP = 3.0  # an observation counts for at most so many times what was expected: a pause of the process is no cost


class HostCosts:
    """The host's seconds of steps without trees, by the size of the batch, and those that a tree adds."""

    def __init__(self) -> None:
        self._plain_s: dict[int, float] = {}  # batch size class -> a sequence's mean
        self._tree_s: float | None = None

    @property
    def tree_s(self) -> float:
        """Return the seconds that a tree adds to a step; 0 before both kinds of steps have been seen."""
        return self._tree_s or 0.0

    def update(self, sequences: int, trees: int, seconds: float) -> None:
        """Learn that the host took `seconds` for a step of so many sequences, some with a tree."""
        if sequences < 1 or not 0.0 <= seconds < float("inf"):
            return
        size = sequences.bit_length()
        if not trees:
            own = self._plain_s.get(size)
            self._plain_s[size] = _mean(own, seconds / sequences)
        elif self._plain_s:
            nearest = min(self._plain_s, key=lambda known: (abs(known - size), known))
            more_s = max(0.0, seconds - sequences * self._plain_s[nearest]) / trees
            self._tree_s = _mean(self._tree_s, more_s)


def _mean(known: float | None, seen: float) -> float:
    if known is None:
        return seen
    return DECAY * known + (1.0 - DECAY) * (min(seen, MAX_JUMP * known) if known else seen)

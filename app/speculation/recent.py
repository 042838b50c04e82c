"""Keep the median of the last few values."""

from collections import deque

RECENT = 9  # values whose median is taken


class RecentMedian:
    """The median of the last values, of two in the middle the lesser; 0 before there is any.

    One process that was paused for a moment does not move it, as it would move a mean.
    """

    __slots__ = ("_rank", "_recent", "value")

    def __init__(self, size: int = RECENT, rank: float = 0.5) -> None:
        """Keep `size` values; with another `rank` than 0.5, their quantile at it."""
        self._recent: deque[float] = deque(maxlen=size)
        self._rank = rank
        self.value = 0.0

    @property
    def count(self) -> int:
        """Return how many values the median is of."""
        return len(self._recent)

    def add(self, value: float) -> None:
        """Add a value; the oldest one is dropped if there are too many."""
        self._recent.append(value)
        self.value = sorted(self._recent)[int((len(self._recent) - 1) * self._rank)]

from collections import deque

RECENT = 9  # values whose median is taken


class RecentMedian:
    """The median of the last values, of two in the middle the lesser; 0 before any."""

    __slots__ = ("_rank", "_recent", "value")

    def __init__(self, size: int = RECENT, rank: float = 0.5) -> None:
        """Keep `size` values; `rank`: the quantile."""
        self._recent: deque[float] = deque(maxlen=size)
        self._rank = rank
        self.value = 0.0

    @property
    def count(self) -> int:
        return len(self._recent)

    def add(self, value: float) -> None:
        self._recent.append(value)
        self.value = sorted(self._recent)[int((len(self._recent) - 1) * self._rank)]

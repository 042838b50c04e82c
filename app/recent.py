from collections import deque

RECENT = 9  # values whose median is taken


class RecentMedian:
    """The median of the last values, of two in the middle the lesser; 0 before any."""

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

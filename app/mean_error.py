DECAY = 0.99  # of the past at a new measurement


class MeanError:
    """A decaying mean of |measured - expected| / measured. For one writer."""

    def __init__(self) -> None:
        self._weight = self._sum = 0.0

    @property
    def value(self) -> float | None:
        """None before any measurement."""
        return self._sum / self._weight if self._weight else None

    def update(self, expected: float, measured: float) -> None:
        self._weight = self._weight * DECAY + 1.0
        self._sum = self._sum * DECAY + abs(measured - expected) / measured

"""Compute medians, and paired ratios with a confidence bound."""

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Ratio:
    """Geometric mean of paired ratios, its one-sided lower confidence bound (bootstrap over pairs), and the pairs."""

    mean: float
    lower: float
    pairs: int

    def asdict(self) -> dict[str, float]:
        """Return the fields by name."""
        return asdict(self)


def paired_ratio(new: Sequence[float], old: Sequence[float], seed: int = 0) -> Ratio:
    """Return the ratio of new[i] / old[i] over pairs measured side by side, all positive."""
    logs = [math.log(a / b) for a, b in zip(new, old, strict=True)]
    draw = random.Random(seed)
    means = sorted(statistics.fmean(draw.choices(logs, k=len(logs))) for _ in range(RESAMPLES))
    lower = means[int((1 - CONFIDENCE) * RESAMPLES)]
    return Ratio(math.exp(statistics.fmean(logs)), math.exp(lower), len(logs))


def both_bounds(new: Sequence[float], old: Sequence[float]) -> list[float]:
    """Return the mean of paired ratios with its lower and its upper bound, each one-sided."""
    up, down = paired_ratio(new, old), paired_ratio(old, new)
    return [round(value, 4) for value in (up.mean, up.lower, 1.0 / down.lower)]


def median(values: Sequence[float]) -> float:
    """Return the median; 0 for no values."""
    return statistics.median(values) if values else 0.0

"""Hold the figures of one arm under one load.

Service levels are limits of the first token and of a token after it, in multiples of what a request takes alone with
plain decoding in the same world; a request attains a level when it is within both.
"""

import statistics
from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence as Listed
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lab.simulate.load import RequestTimes

PERCENTILES = (50, 95, 99)
LEVELS = (1.5, 2.0, 3.0, 5.0)  # assumed: neither paper states a limit
CLASSES = (*range(9), 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)  # of the histograms, by largest number


@dataclass(frozen=True, slots=True)
class ExitCounts:
    """Count draft rows that checkpoints looked at and that left, and the verdicts that a wrong leave ended early."""

    looked_at: int
    left: int
    wrong: int


@dataclass(frozen=True, slots=True)
class Figures:
    """Hold the figures of one arm under one load; latencies are means over requests."""

    requests: tuple[RequestTimes, ...]
    tokens_per_s: float
    tokens_a_round: float
    drafted: float  # tokens a round
    rejected: float  # part of the drafted
    price_per_h: float
    peak_flops: float
    chosen: str = ""  # settings that were fastest on other data; empty: there was no choice
    lengths: Mapping[int, int] = field(default_factory=dict)  # draft tokens of a sequence in a step -> how often
    batches: Mapping[int, int] = field(default_factory=dict)  # sequences of a step -> how often
    batch_s: Mapping[int, float] = field(default_factory=dict)  # the same, by seconds
    busy: Mapping[str, float] = field(default_factory=dict)  # part of the time, by machine
    exits: ExitCounts | None = None  # None: no row may leave

    @property
    def request_s(self) -> float:
        """Return the seconds of a request."""
        return statistics.fmean(one.total_s for one in self.requests)

    @property
    def token_s(self) -> float:
        """Return the seconds of a token after the first."""
        return statistics.fmean(one.token_s for one in self.requests)

    @property
    def cost(self) -> float:
        """Return the price of a million tokens."""
        return self.price_per_h / (3600.0 * self.tokens_per_s) * 1e6

    def sustained(self, tokens: float) -> "Figures":
        """Return the figures with the tokens/s of closed loops that go on, in which so many tokens are under way.

        By Little's law: the tokens of all requests at once over the seconds of a request, so that no last wave counts.
        """
        return replace(self, tokens_per_s=tokens / self.request_s)

    def percentiles(self) -> dict[str, list[float]]:
        """Return the PERCENTILES of each time of requests, in seconds."""
        names, columns = ("request_s", "first_token_s", "token_s"), zip(*self.requests, strict=True)
        return {
            name: [round(float(one), 4) for one in np.percentile(column, PERCENTILES)]
            for name, column in zip(names, columns, strict=True)
        }

    def attained(self, alone: RequestTimes) -> dict[str, float]:
        """Return the part of the requests within each service level; `alone`: a request with plain decoding."""
        return {f"{level:g}": round(_within(self.requests, alone, level), 3) for level in LEVELS}

    def record(self, alone: RequestTimes) -> dict[str, Any]:
        """Return what goes into a file; histograms as parts, by class."""
        names = ("tokens_per_s", "request_s", "token_s", "tokens_a_round", "drafted", "rejected", "cost", "peak_flops")
        found: dict[str, Any] = {name: round(getattr(self, name), 5) for name in names}
        found |= {
            "chosen": self.chosen,
            "percentiles": self.percentiles(),
            "slo": self.attained(alone),
            "drafted a step": parts(self.lengths),
            "batches": parts(self.batches),
            "batches by time": parts(self.batch_s),
            "busy": {name: round(part, 3) for name, part in self.busy.items()},
        }
        if self.exits is not None:
            found["exits"] = {"looked at": self.exits.looked_at, "left": self.exits.left, "wrong": self.exits.wrong}
        return found


def parts(counts: Mapping[int, float]) -> dict[str, float]:
    """Return the part of each class, named by its largest number, of what is counted by number."""
    found: Counter[int] = Counter()
    for number, count in counts.items():
        found[min((upper for upper in CLASSES if upper >= number), default=number)] += count  # type: ignore[assignment]
    whole = sum(found.values())
    return {str(upper): round(found[upper] / whole, 3) for upper in sorted(found)}


def _within(requests: Listed[RequestTimes], alone: RequestTimes, factor: float) -> float:
    good = [one.first_s <= factor * alone.first_s and one.token_s <= factor * alone.token_s for one in requests]
    return sum(good) / max(1, len(good))

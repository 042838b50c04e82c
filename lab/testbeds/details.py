"""Hold the figures of single requests and steps of a run: percentiles, service levels, sizes, busy parts, early exit.

Service levels are limits of the first token and of a token after it, in multiples of what a request takes
alone with plain decoding in the same world; a request attains a level when it is within both.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Listed
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lab.simulate.load import RequestTimes
from lab.testbeds.worlds import Number

PERCENTILES = (50, 95, 99)
SOURCE = "assumed: neither paper states a limit"
LEVELS = tuple(Number(factor, SOURCE) for factor in (1.5, 2.0, 3.0, 5.0))
UPPERS = (*range(9), 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)  # of the histograms' classes


@dataclass(frozen=True, slots=True)
class ExitCounts:
    """Count draft rows that checkpoints looked at and that left, and the verdicts that a wrong leave ended early."""

    looked_at: int
    left: int
    wrong: int


@dataclass(frozen=True, slots=True)
class Details:
    """Hold the figures of a run beyond its means."""

    requests: tuple[RequestTimes, ...] = ()
    lengths: Mapping[int, int] = field(default_factory=dict)  # draft tokens of a sequence in a step -> how often
    batches: Mapping[int, int] = field(default_factory=dict)  # sequences of a step -> how often
    batch_s: Mapping[int, float] = field(default_factory=dict)  # the same, by seconds
    busy: Mapping[str, float] = field(default_factory=dict)  # part of the time, by machine
    exits: ExitCounts | None = None  # None: no row may leave

    def percentiles(self) -> dict[str, list[float]]:
        """Return the percentiles of each time of requests, in seconds."""
        columns = zip(*self.requests, strict=True)
        names = ("request_s", "first_token_s", "token_s")
        return {
            name: [round(float(one), 4) for one in np.percentile(own, PERCENTILES)]
            for name, own in zip(names, columns, strict=False)
        }

    def attained(self, alone: RequestTimes) -> dict[str, float]:
        """Return the part of the requests within each service level; `alone`: a request with plain decoding."""
        return {f"{level.value:g}": round(_within(self.requests, alone, level.value), 3) for level in LEVELS}

    def kept(self, alone: RequestTimes) -> dict[str, Any]:
        """Return what of it goes into a file; histograms as parts, by class."""
        found: dict[str, Any] = {
            **self.percentiles(),
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
        found[min((upper for upper in UPPERS if upper >= number), default=number)] += count  # type: ignore[assignment]
    whole = sum(found.values())
    return {str(upper): round(found[upper] / whole, 3) for upper in sorted(found)}


def requests_table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the percentiles and service levels of arms as a Markdown table; rows: as `Details.kept` has them."""
    levels = ", ".join(f"{level.value:g}" for level in LEVELS)
    lines = [
        f"Percentiles {', '.join(map(str, PERCENTILES))}; part of requests within {levels} times plain decoding alone",
        "| arm | a request, s | first token, s | a token, ms | within |",
        "|---" * 5 + "|",
    ]
    for name, row in rows.items():
        lines.append(
            f"| {name} | {_numbers(row['request_s'])} | {_numbers(row['first_token_s'])} "
            f"| {_numbers((1e3 * one for one in row['token_s']), 1)} | {_numbers(row['slo'].values())} |"
        )
    return "\n".join(lines) + "\n"


def steps_table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the sizes of steps, busy parts and early exit of arms as a Markdown table."""
    lines = [
        "Parts of the steps by their size (up to so many), parts of the time in which machines work, rows that left",
        "| arm | drafted for a sequence | sequences | busy | rows looked at, left, wrong |",
        "|---" * 5 + "|",
    ]
    for name, row in rows.items():
        exits = ", ".join(map(str, row["exits"].values())) if "exits" in row else ""
        lines.append(
            f"| {name} | {_classes(row['drafted a step'])} | {_classes(row['batches'])} | {_classes(row['busy'])} "
            f"| {exits} |"
        )
    return "\n".join(lines) + "\n"


def dumps(found: Mapping[str, Any]) -> str:
    """Return JSON in which what holds no more lists or mappings takes one line."""
    text = json.dumps(found, indent=1)
    flat = re.compile(r"([\[{])\n\s*([^\[\]{}]*?)\n\s*([\]}])")
    return flat.sub(lambda one: one[1] + re.sub(r"\n\s*", " ", one[2]) + one[3], text) + "\n"


def _within(requests: Listed[RequestTimes], alone: RequestTimes, factor: float) -> float:
    good = [one.first_s <= factor * alone.first_s and one.token_s <= factor * alone.token_s for one in requests]
    return sum(good) / max(1, len(good))


def _numbers(values: Iterable[float], digits: int = 2) -> str:
    return ", ".join(f"{value:.{digits}f}" for value in values)


def _classes(found: Mapping[str, float]) -> str:
    return ", ".join(f"{name}: {part:.2f}" for name, part in found.items() if part >= 0.005)

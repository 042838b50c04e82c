"""Compare arms: the quotients that a paper states, and their bands over the fitted worlds.

A paper's figure is reproduced where its band over worlds excludes 1, is at most WIDEST wide to either side of its
middle, and holds the figure.
"""

import statistics
from collections.abc import Mapping
from collections.abc import Sequence as Listed
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from lab.testbeds.figures import Figures
from lab.ways import OFF

WIDEST = 0.25  # half of a band over its middle
KEPT = 0.8  # part of the worlds in which ablations must keep their order


@dataclass(frozen=True, slots=True)
class Comparison:
    """A figure of an arm over that of the best of others; `paper`: its name among the paper's figures."""

    paper: str
    figure: Literal["request_s", "tokens_per_s"]
    arm: str
    over: tuple[str, ...]
    cost: Literal["price_per_h", "peak_flops"] | None = None  # what both are divided by; None: nothing


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read what a paper's baselines were: the paper's headlines by comparison."""

    headlines: Mapping[str, float]
    order: tuple[str, ...]  # arms by tokens/s, falling, as the paper's ablation has them


def compared(one: Comparison, figures: Mapping[str, Figures]) -> float | None:
    """Return the arm's figure over that of the best of the others; None where an arm was not run."""
    names = [name for name in one.over if name in figures]
    if not names or one.arm not in figures:
        return None

    def value(name: str) -> float:
        own = figures[name]
        return float(getattr(own, one.figure)) / (getattr(own, one.cost) if one.cost else 1.0)

    best = (min if one.figure == "request_s" else max)(map(value, names))
    return value(one.arm) / best


def bands(paper: str, reading: str, rows: Listed[Mapping[str, Figures]]) -> dict[str, Any]:
    """Return the bands of a paper's quotients over worlds, and the verdict on its headlines; rows: arms by world."""
    own = READINGS[paper][reading]
    found = {one.paper: [compared(one, row) for row in rows] for one in COMPARISONS[paper]}
    values = {name: [one for one in column if one is not None] for name, column in found.items()}
    return {
        "bands": {name: band(column) for name, column in values.items() if column},
        "verdicts": {name: verdict(number, values[name]) for name, number in own.headlines.items()},
        "order": order_kept(own.order, rows),
    }


def band(values: Listed[float]) -> dict[str, float]:
    """Return the least, the median and the largest value."""
    low, median, high = (float(one) for one in np.percentile(values, [0, 50, 100]))
    return {"low": round(low, 4), "median": round(median, 4), "high": round(high, 4)}


def verdict(number: float, values: Listed[float]) -> dict[str, Any]:
    """Return whether a band excludes 1, is narrow enough and holds the paper's number."""
    own = band(values)
    low, high = own["low"], own["high"]
    excludes, narrow, holds = not low <= 1.0 <= high, (high - low) / (high + low) <= WIDEST, low <= number <= high
    return {
        "paper": round(number, 3),
        **own,
        "excludes 1": excludes,
        "narrow": narrow,
        "holds": holds,
        "reproduced": excludes and narrow and holds,
    }


def order_kept(order: Listed[str], rows: Listed[Mapping[str, Figures]]) -> dict[str, Any]:
    """Return the part of the worlds in which the arms have the paper's order by tokens/s."""
    kept = [
        all(row[a].tokens_per_s > row[b].tokens_per_s for a, b in zip(order, order[1:], strict=False)) for row in rows
    ]
    part = statistics.fmean(kept)
    return {"falling": [*order], "part": round(part, 3), "is kept": part >= KEPT}


BASELINES = (OFF, "vanilla", "specinfer", "pipeinfer")
ONE_DRAFTER = (OFF, "vanilla, mixture", "pipeinfer, mixture")  # if each of the paper's baselines had one drafter
COSINE = (
    Comparison("latency, cosine over the best baseline", "request_s", "cosine", BASELINES),
    Comparison("latency, cosine over the best of one drafter", "request_s", "cosine", ONE_DRAFTER),
    Comparison("tokens/s, cosine over the best of one drafter", "tokens_per_s", "cosine", ONE_DRAFTER),
    Comparison("tokens/s, cosine over specinfer", "tokens_per_s", "cosine", ("specinfer",)),
    Comparison("headline, on the same machines", "tokens_per_s", "cosine", BASELINES),
    Comparison("tokens/s, cosine over off", "tokens_per_s", "cosine", (OFF,)),
    Comparison("tokens/s, specinfer over off, by quotients", "tokens_per_s", "specinfer", (OFF,)),
    Comparison("tokens/s, pipeinfer over specinfer, by quotients", "tokens_per_s", "pipeinfer", ("specinfer",)),
    Comparison("tokens/s, the same of one drafter", "tokens_per_s", "pipeinfer, mixture", ("vanilla, mixture",)),
    Comparison("tokens/s, smurfs over specinfer", "tokens_per_s", "smurfs", ("specinfer",)),
    Comparison("tokens/s without cooperation", "tokens_per_s", "cosine without sharing", ("cosine",)),
    Comparison("tokens/s without fusion", "tokens_per_s", "cosine without fusion", ("cosine",)),
    Comparison("headline, at equal cost", "tokens_per_s", "cosine", BASELINES, "price_per_h"),
    Comparison("headline, at equal peak compute", "tokens_per_s", "cosine", BASELINES, "peak_flops"),
    Comparison("headline, at equal cost, of one drafter", "tokens_per_s", "cosine", ONE_DRAFTER, "price_per_h"),
    Comparison("tokens/s, pace over cosine", "tokens_per_s", "pace", ("cosine",)),
    Comparison("tokens/s, pace over the best baseline", "tokens_per_s", "pace", BASELINES),
    Comparison("tokens/s, pace over the best of one drafter", "tokens_per_s", "pace", ONE_DRAFTER),
)
WITHOUT_OFF = ("vanilla", "vanilla of 6", "adaspec", "smurfs")  # the baselines of FASER's paper
FASER = (
    Comparison("latency over the best baseline", "request_s", "faser", WITHOUT_OFF),
    Comparison("tokens/s over the best baseline", "tokens_per_s", "faser", WITHOUT_OFF),
    Comparison("tokens/s over the best baseline or off", "tokens_per_s", "faser", (OFF, *WITHOUT_OFF)),
    Comparison("lengths alone, over vanilla", "tokens_per_s", "faser, lengths", ("vanilla",)),
    Comparison("lengths and early exit, over vanilla", "tokens_per_s", "faser, lengths and exit", ("vanilla",)),
    Comparison("all three, over vanilla of 6", "tokens_per_s", "faser", ("vanilla of 6",)),
    Comparison("lengths and overlap, over vanilla", "tokens_per_s", "faser, lengths and overlap", ("vanilla",)),
    Comparison("all three, over vanilla", "tokens_per_s", "faser", ("vanilla",)),
    Comparison("tokens/s, vanilla over off", "tokens_per_s", "vanilla", (OFF,)),
    Comparison("tokens/s, adaspec over vanilla", "tokens_per_s", "adaspec", ("vanilla",)),
    Comparison("tokens/s, smurfs over vanilla", "tokens_per_s", "smurfs", ("vanilla",)),
    Comparison("tokens/s, pace over faser", "tokens_per_s", "pace", ("faser",)),
    Comparison("tokens/s, pace over the best baseline", "tokens_per_s", "pace", (OFF, *WITHOUT_OFF)),
)

COMPARISONS = {"cosine": COSINE, "faser": FASER}
COSINE_ORDER = ("cosine", "cosine without fusion", "cosine without sharing")
FASER_ORDER = ("faser", "faser, lengths", "faser, lengths and exit", "vanilla of 6")
READINGS = {
    "cosine": {
        "all experts": Reading(
            {"latency, cosine over the best baseline": 1.0 - 0.232, "headline, on the same machines": 1.325},
            COSINE_ORDER,
        ),
        "one drafter": Reading(
            {
                "latency, cosine over the best of one drafter": 1.0 - 0.232,
                "tokens/s, cosine over the best of one drafter": 1.325,
            },
            COSINE_ORDER,
        ),
    },
    "faser": {
        "as stated": Reading(
            {"latency over the best baseline": 1.0 / 1.92, "tokens/s over the best baseline": 1.53}, FASER_ORDER
        ),
    },
}

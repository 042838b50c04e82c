"""Report a load as figures, lines and a picture: latencies, goodput, drafts.

Takes requests as their clients met them; knows nothing of how they were sent.
"""

import statistics
from collections.abc import Iterable
from collections.abc import Sequence as Listed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # writes files; no window is opened
from matplotlib import pyplot

Figures = dict[str, Any]
PERCENTILES = (50, 95, 99)
MEANINGS = {
    "ttft_s": "time to first token, s (p95)",
    "tpot_s": "time a token, s (p95)",
    "total_s": "whole request, s (p95)",
}
OVER_TIME = {"under_way": "requests under way", "drafted_per_round": "draft tokens verified a round"}


@dataclass(frozen=True, slots=True)
class Served:
    """A request as its client met it; times in seconds since the load's start."""

    domain: str
    sent_s: float
    end_s: float
    first_s: float | None = None  # None: no token came
    tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    error: str | None = None
    is_repeated: bool = False  # its prompt was asked before, but for a number behind it

    @property
    def ttft_s(self) -> float | None:
        """Return the time to the first token, seconds; None where none came."""
        return None if self.first_s is None else self.first_s - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        """Return the mean time of every token but the first, seconds."""
        return None if self.first_s is None or self.tokens < 2 else (self.end_s - self.first_s) / (self.tokens - 1)

    @property
    def total_s(self) -> float:
        """Return the time of the whole request, seconds."""
        return self.end_s - self.sent_s


@dataclass(frozen=True, slots=True)
class Slo:
    """A latency objective for a request, in seconds."""

    ttft_s: float
    tpot_s: float

    def holds(self, one: Served) -> bool:
        """Tell whether a request met the objective; a failed one or one without a token did not."""
        if one.error is not None or one.ttft_s is None:
            return False
        return one.ttft_s <= self.ttft_s and (one.tpot_s or 0.0) <= self.tpot_s


def figures(served: Listed[Served], seconds: float, slo: Slo) -> Figures:
    """Compute a load's figures; `seconds`: from its start to its last answer."""
    done = [one for one in served if one.error is None]
    tokens, rounds = sum(one.tokens for one in done), sum(one.rounds for one in done)
    drafted, accepted = sum(one.drafted for one in done), sum(one.accepted for one in done)
    return {
        "requests": len(served),
        "repeated": sum(one.is_repeated for one in served),
        "failed": len(served) - len(done),
        "errors": sorted({one.error for one in served if one.error is not None}),
        "seconds": round(seconds, 2),
        "offered_per_s": round(len(served) / max(1e-9, max((one.sent_s for one in served), default=0.0)), 3),
        "tokens_per_s": round(tokens / seconds, 2),
        "goodput_per_s": round(sum(map(slo.holds, served)) / seconds, 3),
        "slo": {"ttft_s": slo.ttft_s, "tpot_s": slo.tpot_s},
        "ttft_s": spread(one.ttft_s for one in done),
        "tpot_s": spread(one.tpot_s for one in done),
        "total_s": spread(one.total_s for one in done),
        "tokens_per_round": round(tokens / rounds, 3) if rounds else 0.0,
        "drafted_per_round": round(drafted / rounds, 3) if rounds else 0.0,
        "draft_waste": round(1.0 - accepted / drafted, 3) if drafted else 0.0,
        "series": series(served, seconds),
    }


def spread(values: Iterable[float | None]) -> dict[str, float]:
    """Return percentiles of the known values; 0 where none is known."""
    known = sorted(value for value in values if value is not None)
    if len(known) < 2:
        return {f"p{p}": round(known[0], 4) if known else 0.0 for p in PERCENTILES}
    cuts = statistics.quantiles(known, n=100, method="inclusive")
    return {f"p{p}": round(cuts[p - 1], 4) for p in PERCENTILES}


def series(served: Listed[Served], seconds: float, parts: int = 60) -> dict[str, list[float]]:
    """Return requests under way over time, and draft tokens a round of those that ended in each
    part."""
    width = max(1e-9, seconds / parts)
    found: dict[str, list[float]] = {"at_s": [], "under_way": [], "drafted_per_round": []}
    for i in range(parts):
        at_s = (i + 0.5) * width
        ended = [one for one in served if i * width <= one.end_s < (i + 1) * width]
        rounds = sum(one.rounds for one in ended)
        found["at_s"].append(round(at_s, 2))
        found["under_way"].append(float(sum(one.sent_s <= at_s < one.end_s for one in served)))
        found["drafted_per_round"].append(round(sum(one.drafted for one in ended) / rounds, 3) if rounds else 0.0)
    return found


def table(loads: Iterable[Figures]) -> str:
    """Return the loads as a Markdown table."""
    lines = [
        "| rate, 1/s | arm | tokens/s | goodput, 1/s | first token p50 / p99, s | a token p50 / p99, ms "
        "| tokens a round | waste | failed |",
        "|---" * 9 + "|",
    ]
    for one in loads:
        ttft, tpot = one["ttft_s"], one["tpot_s"]
        lines.append(
            f"| {one['rate']:g} | {one['arm']} | {one['tokens_per_s']:.1f} | {one['goodput_per_s']:.2f} "
            f"| {ttft['p50']:.2f} / {ttft['p99']:.2f} | {1e3 * tpot['p50']:.0f} / {1e3 * tpot['p99']:.0f} "
            f"| {one['tokens_per_round']:.2f} | {one['draft_waste']:.0%} | {one['failed']} of {one['requests']} |"
        )
    return "\n".join(lines)


def draw(loads: Listed[Figures], out: Path) -> None:
    """Draw percentiles by rate, or for one rate requests under way and draft length over time, into
    a PNG file."""
    by_rate = len({one["rate"] for one in loads}) > 1
    names = MEANINGS if by_rate else OVER_TIME
    figure, axes = pyplot.subplots(1, len(names), figsize=(4.2 * len(names), 3.4), squeeze=False, layout="constrained")
    for panel, (name, title) in zip(axes[0], names.items(), strict=True):
        for arm in dict.fromkeys(one["arm"] for one in loads):
            own = [one for one in loads if one["arm"] == arm]
            xs = [one["rate"] for one in own] if by_rate else own[0]["series"]["at_s"]
            ys = [one[name]["p95"] for one in own] if by_rate else own[0]["series"][name]
            panel.plot(xs, ys, marker="o" if by_rate else "", label=f"speculation {arm}")
        panel.set_title(title)
        panel.set_xlabel("requests a second" if by_rate else "seconds")
        panel.set_ylim(bottom=0.0)
    axes[0][0].legend()
    figure.savefig(out, dpi=110)
    pyplot.close(figure)

"""Report a load as figures and a table: latencies, goodput, refusals, drafts."""

import statistics
from collections.abc import Iterable
from collections.abc import Sequence as Listed
from dataclasses import dataclass
from typing import Any

Figures = dict[str, Any]
PERCENTILES = (50, 95, 99)
CALM, CALM_REQUESTS = 1.5, 5  # recovered: so many requests in a row within so many times the p95 of the first part


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
    is_repeated: bool = False  # an earlier request had its prompt, but for a number behind it
    token_ids: tuple[int, ...] = ()
    pieces: tuple[tuple[float, int], ...] = ()  # of the text: when each came, and its characters

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

    @property
    def is_refused(self) -> bool:
        """Tell whether the server refused the request and told the client to try again later."""
        return self.error is not None and "try again" in self.error


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
    """Compute a load's figures; `seconds`: from its start to its last answer. A refused request has not failed."""
    done = [one for one in served if one.error is None]
    refused = [one for one in served if one.is_refused]
    tokens, rounds = sum(one.tokens for one in done), sum(one.rounds for one in done)
    drafted, accepted = sum(one.drafted for one in done), sum(one.accepted for one in done)
    return {
        "requests": len(served),
        "repeated": sum(one.is_repeated for one in served),
        "refused": len(refused),
        "refused_s": spread(one.total_s for one in refused),
        "failed": len(served) - len(done) - len(refused),
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


def parts(served: Listed[Served], rates: Listed[float], seconds: float, slo: Slo) -> list[Figures]:
    """Return the figures of the requests sent in each of equal parts of `seconds`, each with its rate."""
    found, each_s = [], seconds / len(rates)
    for i, rate in enumerate(rates):
        own = [one for one in served if i * each_s <= one.sent_s < (i + 1) * each_s]
        took_s = max((one.end_s for one in own if not one.is_refused), default=(i + 1) * each_s) - i * each_s
        found.append(figures(own, took_s, slo) | {"rate": rate, "arm": f"part {i + 1}"})
        del found[-1]["series"]
    return found


def recovered_s(served: Listed[Served], begin_s: float, end_s: float) -> float | None:
    """Return the seconds from an overload's end until requests are answered as before its begin; None: never."""
    done = sorted((one for one in served if one.error is None), key=lambda one: one.sent_s)
    before = spread(one.total_s for one in done if one.sent_s < begin_s)["p95"]
    after = [one for one in done if one.sent_s >= end_s]
    for i in range(len(after) - CALM_REQUESTS + 1):
        if all(one.total_s <= CALM * before for one in after[i : i + CALM_REQUESTS]):
            return round(after[i].sent_s - end_s, 2)
    return None


def spread(values: Iterable[float | None]) -> dict[str, float]:
    """Return percentiles of the known values; 0 where none is known."""
    known = sorted(value for value in values if value is not None)
    if len(known) < 2:
        return {f"p{p}": round(known[0], 4) if known else 0.0 for p in PERCENTILES}
    cuts = statistics.quantiles(known, n=100, method="inclusive")
    return {f"p{p}": round(cuts[p - 1], 4) for p in PERCENTILES}


def series(served: Listed[Served], seconds: float, parts: int = 60) -> dict[str, list[float]]:
    """Return requests under way over time, and draft tokens a round of those that ended in each part."""
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
        "| whole p50 / p99, s | tokens a round | waste | refused | failed |",
        "|---" * 11 + "|",
    ]
    for one in loads:
        ttft, tpot, total = one["ttft_s"], one["tpot_s"], one["total_s"]
        lines.append(
            f"| {one['rate']:g} | {one['arm']} | {one['tokens_per_s']:.1f} | {one['goodput_per_s']:.2f} "
            f"| {ttft['p50']:.2f} / {ttft['p99']:.2f} | {1e3 * tpot['p50']:.0f} / {1e3 * tpot['p99']:.0f} "
            f"| {total['p50']:.2f} / {total['p99']:.2f} | {one['tokens_per_round']:.2f} | {one['draft_waste']:.0%} "
            f"| {one['refused']} | {one['failed']} of {one['requests']} |"
        )
    return "\n".join(lines)

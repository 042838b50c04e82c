"""`./paceline lab simulate load`: compare fixed draft lengths with the adaptive one from idle to
overload.

Requests come at Poisson times whether or not others have ended; the texts of a recording in turn,
each many times, so that the suffix drafter, which would know them, is left out everywhere. The
adaptive arm is the very code that serves.
"""

import argparse
import json
import statistics
from collections.abc import Mapping
from collections.abc import Sequence as Listed
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from app.stages.draft.registry import MODEL_FREE
from bench.load.arrivals import poisson, steps
from lab.cooperate.variants import FULL, Variant, by_length, rules
from lab.simulate.log import Log
from lab.simulate.machines import build
from lab.simulate.world import MakeModelFree, Setting, World

USED = tuple(name for name in MODEL_FREE if name != "suffix")


@dataclass(frozen=True, slots=True)
class Met:
    """Hold the latencies that clients of one load met, in seconds; means but where a percentile is
    named."""

    total_s: float
    total_p95_s: float
    ttft_s: float
    tpot_s: float
    tokens_per_s: float  # until the last answer
    tokens_per_round: float
    drafted_per_round: float


def replay_load(log: Log, args: argparse.Namespace, fresh: MakeModelFree) -> dict[str, Any]:
    """Run every arm at every rate, and in a burst of ten times the first rate."""
    found: dict[str, Any] = {"texts": len(log.texts), "seconds": args.seconds, "rates": []}
    setting = Setting(
        1, args.verifiers, args.slowdown[0], 1e-3 * args.hop_ms, args.seed, args.local, args.drafter_slowdown
    )
    for rate in args.rates:
        arrivals_s = [arrival.at_s for arrival in poisson(rate, args.seconds, 1, args.seed)]
        met = {variant.name: load(log, variant, setting, arrivals_s, fresh) for variant in arms(args.lengths)}
        found["rates"].append(load_figures(rate, len(arrivals_s), met))
        print(table(found["rates"][-1]), flush=True)
    calm = args.rates[0]
    arrivals_s = [arrival.at_s for arrival in steps([calm, 10 * calm, calm], args.seconds, 1, args.seed)]
    met = {variant.name: load(log, variant, setting, arrivals_s, fresh) for variant in arms(args.lengths)}
    found["burst"] = load_figures(calm, len(arrivals_s), met)
    print(table(found["burst"]), flush=True)
    found["over all rates"] = overall(found["rates"])
    print(json.dumps(found["over all rates"], indent=1))
    return found


def arms(lengths: Listed[int]) -> list[Variant]:
    """Return the arms that are compared."""
    return [*by_length(lengths, USED), *rules(USED)]


def load(log: Log, variant: Variant, setting: Setting, arrivals_s: Listed[float], fresh: MakeModelFree) -> Met:
    """Run requests that arrive at these seconds, drafted as the variant says; return what their
    clients met."""
    world = build(log, variant, setting, fresh)
    world.run(arrivals_s)
    return met(world)


class RequestTimes(NamedTuple):
    """Hold what one request met, in seconds."""

    total_s: float
    first_s: float  # until its first token
    token_s: float  # after that


def times(world: World) -> list[RequestTimes]:
    """Return what each request of a simulation that has ended met."""
    found = []
    for record in world.ended:
        end = world.store.snapshot(record.id)
        first_s, last_s = end.stats.first_token_s or 0.0, end.stats.last_token_s or 0.0
        token_s = (last_s - first_s) / max(1, len(end.tokens) - 1)
        found.append(RequestTimes(last_s - end.record.created_s, first_s - end.record.created_s, token_s))
    return found


def met(world: World) -> Met:
    """Return what the clients of a simulation that has ended met."""
    ends = [world.store.snapshot(record.id) for record in world.ended]
    requests = times(world)
    totals = [one.total_s for one in requests]
    rounds = sum(end.stats.rounds for end in ends)
    tokens = sum(len(end.tokens) for end in ends)
    return Met(
        statistics.fmean(totals),
        statistics.quantiles(totals, n=20)[-1] if len(totals) > 1 else totals[0],
        statistics.fmean(one.first_s for one in requests),
        statistics.fmean(one.token_s for one in requests),
        tokens / max(end.stats.last_token_s or 0.0 for end in ends),
        tokens / rounds,
        sum(end.stats.drafted for end in ends) / rounds,
    )


def load_figures(rate: float, requests: int, met: Mapping[str, Met]) -> dict[str, Any]:
    """Compute one load's figures, and the ratio of the best other arm to the adaptive one by mean
    request time."""
    others = {name: one.total_s for name, one in met.items() if name != FULL}
    best = min(others, key=others.__getitem__)
    return {
        "rate": rate,
        "requests": requests,
        "best fixed": best,
        "best fixed / adaptive": round(others[best] / met[FULL].total_s, 4),
        "arms": {name: {key: round(value, 4) for key, value in asdict(one).items()} for name, one in met.items()},
    }


def overall(rates: Listed[dict[str, Any]]) -> dict[str, Any]:
    """Return each arm's ratio to the adaptive one by mean request time, a geometric mean over the
    rates, and the lowest ratio of the best fixed arm to it."""
    names = [name for name in rates[0]["arms"] if name != FULL]
    return {
        "arm / adaptive": {
            name: round(
                statistics.geometric_mean(r["arms"][name]["total_s"] / r["arms"][FULL]["total_s"] for r in rates), 4
            )
            for name in names
        },
        "worst of best fixed / adaptive": min(r["best fixed / adaptive"] for r in rates),
    }


def table(found: dict[str, Any]) -> str:
    """Return one load as a Markdown table."""
    lines = [
        f"{found['rate']:g} requests a second, {found['requests']} of them; best fixed / adaptive "
        f"{found['best fixed / adaptive']:.3f} ({found['best fixed']})",
        "| arm | a request, s | p95 | first token, s | a token, ms | tokens/s | tokens a round | drafted |",
        "|---" * 8 + "|",
    ]
    for name, one in found["arms"].items():
        lines.append(
            f"| {name} | {one['total_s']:.2f} | {one['total_p95_s']:.2f} | {one['ttft_s']:.2f} "
            f"| {1e3 * one['tpot_s']:.0f} | {one['tokens_per_s']:.1f} | {one['tokens_per_round']:.2f} "
            f"| {one['drafted_per_round']:.2f} |"
        )
    return "\n".join(lines) + "\n"

"""`./paceline lab sweep`: compare fixed draft lengths with the adaptive one from idle to
overload.

Requests come at Poisson times whether or not others have ended, to a pipeline in this process. No
beat runs there, so every arm is under the first policy: `bench load steps --arms unsteered on` and
`lab simulate beat` say what beat is worth.
Every arm gets the same requests at the same times, one arm after the other, in an order that
rotates with every repeat; a request's times in two arms are a pair.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping
from collections.abc import Sequence as Listed
from pathlib import Path
from typing import Any, NamedTuple

from app.config import ROOT, THREAD_ENVIRONMENT, Settings

os.environ.update({**THREAD_ENVIRONMENT, **os.environ})  # before torch is loaded, as in the workers

from app.assembly.local import load_models
from app.store.protocol import Snapshot
from bench.help import parser as parser_of
from bench.load.arrivals import poisson
from bench.load.client import is_repeated, prompt
from bench.load.report import Served, Slo, figures
from bench.report_header import heading
from bench.stats import paired_ratio
from lab.cooperate.systems import PipelineArm
from lab.cooperate.variants import FULL, Variant, by_length, rules

Arms = Mapping[str, PipelineArm]
WARM_UP = 3  # requests
ABLATIONS = [
    Variant(f"{FULL} again"),  # how far chance goes
]


class Text(NamedTuple):
    """A request of a load, the same in every arm."""

    at_s: float  # when it comes
    domain: str
    prompt: str
    is_repeated: bool = False  # asked before, but for the number behind it

    @classmethod
    def of(cls, at_s: float, number: int) -> "Text":
        """Return the n-th request, which comes at this time."""
        return cls(at_s, *prompt(number, None), is_repeated(number))


def main(argv: Listed[str] | None = None) -> int:
    """Run the sweep, print, write the figures; return the exit status. Raises SystemExit when texts
    differ."""
    args = parse_args(argv)
    settings = Settings.from_env()
    models = load_models(settings)
    variants = by_length(args.lengths) + ([*rules(), *ABLATIONS] if args.ablations else [])
    arms = {variant.name: PipelineArm(variant, settings, models, args.max_tokens) for variant in variants}
    found: dict[str, Any] = {
        **heading("lab sweep", argv),
        "rates": [],
    }
    number = warm_up(arms)
    for rate in args.rates:
        runs: dict[str, list[Listed[Served]]] = {name: [] for name in arms}
        for repeat in range(args.repeats):
            requests = [arrival.at_s for arrival in poisson(rate, args.seconds, args.max_tokens, repeat)]
            texts: list[Text] = [Text.of(at_s, number + i) for i, at_s in enumerate(requests)]
            number += len(texts)
            generated: set[tuple[tuple[int, ...], ...]] = set()
            for name in turned([*arms], repeat * max(1, len(arms) // args.repeats)):
                started_s = time.time()
                ends = arms[name].load([(text.at_s, text.prompt) for text in texts])
                generated.add(tuple(end.tokens for end in ends))
                runs[name].append(served(ends, texts, started_s))
            if len(generated) > 1:
                raise SystemExit("two arms said different texts")
        found["rates"].append(rate_figures(rate, runs))
        print(table(found["rates"][-1]), flush=True)
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def parse_args(argv: Listed[str] | None) -> argparse.Namespace:
    """Parse the command line; exit on a wrong one."""
    parser = parser_of("lab sweep", __doc__)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.5, 2.0, 4.0], help="requests a second")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1, 2, 3, 5, 7], help="fixed draft lengths")
    parser.add_argument("--ablations", action="store_true", help="other rules for the length too, and parts left out")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long requests come, for one arm and repeat")
    parser.add_argument("--repeats", type=int, default=2, help="of every rate")
    parser.add_argument("--max-tokens", type=int, default=48, help="tokens a request")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "sweep.json", help="file to write")
    args = parser.parse_args(argv)
    if min(args.rates) <= 0.0 or args.seconds <= 0.0 or args.repeats < 1 or min(args.lengths) < 1:
        parser.error("rates, seconds, repeats and lengths are more than 0")
    return args


def warm_up(arms: Arms) -> int:
    """Send a few requests through every arm, uncounted; return the number of the next prompt."""
    texts = [(0.0, prompt(i, None)[1]) for i in range(WARM_UP)]
    for arm in arms.values():
        arm.load(texts)
    return WARM_UP


def served(ends: Listed[Snapshot], texts: Listed[Text], started_s: float) -> list[Served]:
    """Return the requests as their clients would have met them: each waits from when it was due.

    The pipeline admits between steps only, so a request's own times begin later. `started_s`: wall
    clock.
    """
    return [
        Served(
            text.domain,
            text.at_s,
            (end.stats.last_token_s or started_s) - started_s,
            (end.stats.first_token_s or started_s) - started_s,
            len(end.tokens),
            end.stats.rounds,
            end.stats.drafted,
            end.stats.accepted,
            end.error,
            text.is_repeated,
        )
        for end, text in zip(ends, texts, strict=True)
    ]


def turned(names: list[str], by: int) -> list[str]:
    """Rotate the arms by `by` places, so that a machine that slows down slows all arms alike."""
    places = by % len(names)
    return names[places:] + names[:places]


def rate_figures(rate: float, runs: Mapping[str, Listed[Listed[Served]]]) -> dict[str, Any]:
    """Compute one rate's figures, and every arm's ratio to the adaptive one by the same requests'
    times."""
    everything = {name: [one for repeat in own for one in repeat] for name, own in runs.items()}
    totals = {name: [one.total_s for one in own] for name, own in everything.items()}
    ratios = {name: paired_ratio(own, totals[FULL]) for name, own in totals.items() if name != FULL}
    arms = {}
    for name, own in everything.items():
        seconds = sum(max(one.end_s for one in repeat) for repeat in runs[name] if repeat)
        arms[name] = {key: value for key, value in figures(own, seconds, Slo(2.0, 0.15)).items() if key != "series"}
        arms[name]["mean_s"] = round(sum(totals[name]) / len(totals[name]), 4)
    return {
        "rate": rate,
        "requests": len(totals[FULL]),
        "arms": arms,
        "arm / adaptive": {name: ratio.asdict() for name, ratio in ratios.items()},
    }


def table(found: Mapping[str, Any]) -> str:
    """Return one rate as a Markdown table."""
    lines = [
        f"{found['rate']:g} requests a second, {found['requests']} in all",
        "| arm | a request, s | p95 | first token p50, s | a token p50, ms | tokens a round | drafted "
        "| time / adaptive's (lower bound) |",
        "|---" * 8 + "|",
    ]
    for name, one in found["arms"].items():
        ratio = found["arm / adaptive"].get(name)
        beside = f"{ratio['mean']:.3f} ({ratio['lower']:.3f})" if ratio else ""
        lines.append(
            f"| {name} | {one['mean_s']:.2f} | {one['total_s']['p95']:.2f} | {one['ttft_s']['p50']:.2f} "
            f"| {1e3 * one['tpot_s']['p50']:.0f} | {one['tokens_per_round']:.2f} | {one['drafted_per_round']:.2f} "
            f"| {beside} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())

"""`./paceline bench testbeds`: the testbeds of CoSine and FASER, simulated: arms in worlds of stated numbers.

The code that decides is the one that serves; devices, links, memory and prices are those of `lab/worlds`,
drafts are made with stated statistics or recorded. Prints latency, throughput and cost by arm, and the
paper's figures beside the same quotients here. Single worlds are points and no verdict; with `--fitted` worlds are
sampled that fit the paper's baselines, and figures are bands (docs/papers.md); `figures` draws them.
"""

import argparse
import sys
from collections.abc import Mapping
from collections.abc import Sequence as Listed
from dataclasses import fields
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from app.config import ROOT
from bench.clients.arrivals import Arrival, poisson, trace, window
from bench.help import parser as parser_of
from bench.report_header import heading
from lab.cooperate.variants import OFF
from lab.simulate.load import RequestTimes
from lab.simulate.log import Log
from lab.testbeds.arms import ARMS, Comparison
from lab.testbeds.details import dumps, requests_table, steps_table
from lab.testbeds.figures import draw
from lab.testbeds.fitted import OTHER, study
from lab.testbeds.flags import flags
from lab.testbeds.play import Figures, alone, compared, over_recording, play, tuned
from lab.testbeds.texts import Wanted, made, statistics
from lab.testbeds.worlds import FOLDER, WorldError, WorldSpec, read_world

FIGURES, PICTURES = "figures", ROOT / "docs"
DATA, RESULTS = ROOT / "lab" / "data", ROOT / "bench" / "results"
TRACES = {name: DATA / f"azure-2023-{name}.csv.gz" for name in ("conversation", "code")}
FEWEST_TEXTS, WAVES = 10, 2  # of a closed loop: so many, and so many for each stream
Load = tuple[str, int, list[float] | None]  # its name, streams, and the seconds of arrivals


def main(argv: Listed[str] | None = None) -> int:
    """Simulate, print and write the tables; return the exit status."""
    args = parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    if args.paper == FIGURES:
        return _draw(args.out, args.pictures)
    if args.fitted:
        found = heading("bench testbeds", argv) | study(args.paper, args.seed)
        (args.out / f"testbeds-{args.paper}-fitted.json").write_text(dumps(found))
        return 0
    try:
        worlds = {name: read_world(FOLDER / f"{name}.json") for name in args.worlds or _worlds_of(args.paper)}
    except WorldError as error:
        print(f"paceline bench testbeds: {error}", file=sys.stderr)
        return 2
    print(flags(args.paper, worlds), flush=True)
    for name, world in worlds.items():
        print(f"## {name}\n\n{world.about}\n", flush=True)
        began_s = perf_counter()
        found = heading("bench testbeds", argv) | simulate(world, args)
        found |= {"flags": flags(args.paper, {name: world}), "took_s": round(perf_counter() - began_s, 1)}
        print(f"{name} took {found['took_s']:.0f} s.\n", flush=True)
        kind = [name, *([args.data] if args.data else []), *(["recorded"] if args.log else [])]
        (args.out / f"testbeds-{'-'.join(kind)}.json").write_text(dumps(found))
    return 0


def parse_args(argv: Listed[str] | None) -> argparse.Namespace:
    """Parse the command line; exit on a wrong one."""
    parser = parser_of("bench testbeds", __doc__)
    parser.add_argument(
        "paper", choices=[*sorted(ARMS), FIGURES], help="whose testbed; figures: draw both papers' bands"
    )
    parser.add_argument("--fitted", action="store_true", help="bands over worlds that fit the paper's baselines")
    known = sorted(path.stem for path in FOLDER.glob("*.json"))
    parser.add_argument("--worlds", nargs="+", choices=known, help="default: all of the paper's")
    parser.add_argument("--data", help="data set whose lengths requests have (default: the first)")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16], help="closed loops of so many requests")
    parser.add_argument("--rates", type=float, nargs="+", default=[], help="also requests/s that come by themselves")
    parser.add_argument("--arrivals", choices=["poisson", *TRACES], default="poisson", help="how they come")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long they come")
    parser.add_argument("--log", type=Path, help="drafts of a recording instead of made ones; its texts' lengths hold")
    parser.add_argument("--mixture", default="smol-general", help="the recording's drafter trained on the mixture")
    parser.add_argument("--seed", type=int, default=0, help="of texts, drafts and arrivals")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for a file testbeds-WORLD.json each")
    parser.add_argument("--pictures", type=Path, default=PICTURES, help="folder for the figures, testbeds-PAPER.png")
    args = parser.parse_args(argv)
    if min([*args.batches, *args.rates], default=1) <= 0:
        parser.error("batches and rates are above 0")
    return args


def simulate(world: WorldSpec, args: argparse.Namespace) -> dict[str, Any]:
    """Run every arm under every load; print the tables, and return all figures."""
    evaluation = ARMS[args.paper]
    data = args.data or next(iter(world.loads))
    if data not in world.loads:
        raise SystemExit(f"paceline bench testbeds: no data set {data!r} in this world, only {', '.join(world.loads)}")
    source = partial(_recorded, world, Log.read(args.log), args.mixture) if args.log else partial(_made, world, data)
    own, log = source(FEWEST_TEXTS * len(world.domains), args.seed)
    length = round(world.acceptance.length.value)
    drafts = statistics(log, length)
    print(drafts_table(drafts, length), flush=True)
    found: dict[str, Any] = {"world": world.model_dump(), "data": data, "drafts": drafts, "loads": {}}
    by_load: dict[str, dict[str, Figures]] = {}
    arms = evaluation.arms(own)
    first = alone(own, next(arm for arm in arms if arm.name == OFF), source(1, args.seed)[1], args.seed)
    found["alone"] = {name: round(value, 4) for name, value in first._asdict().items()}
    for name, streams, arrivals_s in loads(args):
        count = len(arrivals_s) if arrivals_s else streams * max(WAVES, -(-FEWEST_TEXTS // streams))
        log, other = (source(count, seed)[1] for seed in (args.seed, args.seed + OTHER))
        rows = {}
        for arm in arms:
            best = tuned(own, arm, other, streams, args.seed + OTHER, arrivals_s)
            rows[arm.name] = play(own, best, log, streams, args.seed, arrivals_s)
        by_load[name] = rows
        found["loads"][name] = {arm: _rounded(row, first) for arm, row in rows.items()}
        print(arms_table(name, rows), flush=True)
        details = {arm: row["details"] for arm, row in found["loads"][name].items()}
        print(f"{requests_table(details)}\n{steps_table(details)}", flush=True)
    lines = {one.paper: [compared(one, rows) for rows in by_load.values()] for one in evaluation.comparisons}
    found["compared"] = {name: [value and round(value, 4) for value in values] for name, values in lines.items()}
    print(compared_table(world.paper, [*by_load], evaluation.comparisons, lines), flush=True)
    return found


def loads(args: argparse.Namespace) -> list[Load]:
    """Return the closed loops and the arrivals that the arguments ask for."""
    closed: list[Load] = [(f"batch {count}", count, None) for count in args.batches]
    recorded = trace(TRACES[args.arrivals]) if args.rates and args.arrivals in TRACES else None
    timed: list[Load] = []
    for rate in args.rates:
        came: list[Arrival] = (
            poisson(rate, args.seconds, 1, args.seed)
            if recorded is None
            else window(recorded, args.seconds, rate, args.seed)
        )
        timed.append((f"{rate:g}/s, {args.arrivals}", 1, [one.at_s for one in came]))
    return [*closed, *timed]


def drafts_table(found: Mapping[str, Mapping[str, float]], length: int) -> str:
    """Return the drafters' tokens a round by domain as a Markdown table."""
    domains = sorted({domain for own in found.values() for domain in own})
    lines = [
        f"Tokens a round of {length} drafted, by drafter and domain (any: wherever one is right)",
        f"| drafter | {' | '.join(domains)} |",
        "|---" * (1 + len(domains)) + "|",
        *(f"| {name} | {' | '.join(f'{own[d]:.2f}' for d in domains)} |" for name, own in found.items()),
    ]
    return "\n".join(lines) + "\n"


def arms_table(load: str, rows: Mapping[str, Figures]) -> str:
    """Return one load as a Markdown table."""
    base = rows["off"]
    lines = [
        load,
        "| arm | a request, s | ms a token | tokens/s | / off | tokens a round | drafted | rejected | a million tokens "
        "| tokens/s over peak compute, / off |",
        "|---" * 10 + "|",
    ]
    for name, row in rows.items():
        efficiency = row.tokens_per_s / row.peak_flops * base.peak_flops / base.tokens_per_s
        chosen = ", ".join(filter(None, (row.lengths, row.way)))
        arm = f"{name} ({chosen})" if chosen else name
        lines.append(
            f"| {arm} | {row.request_s:.2f} | {1e3 * row.token_s:.1f} | {row.tokens_per_s:.1f} "
            f"| {row.tokens_per_s / base.tokens_per_s:.2f} | {row.tokens_a_round:.2f} | {row.drafted:.2f} "
            f"| {row.rejected:.0%} | {row.cost:.2f} | {efficiency:.2f} |"
        )
    return "\n".join(lines) + "\n"


def compared_table(
    paper: Mapping[str, str],
    loads: Listed[str],
    comparisons: Listed[Comparison],
    found: Mapping[str, Listed[float | None]],
) -> str:
    """Return the quotients beside the paper's figures as a Markdown table."""
    lines = [
        "Quotients here, beside what the paper reports (no verdict: see docs/papers.md)",
        f"| figure | paper | {' | '.join(loads)} |",
        "|---" * (2 + len(loads)) + "|",
    ]
    for one in comparisons:
        values = " | ".join("" if value is None else f"{value:.2f}" for value in found[one.paper])
        lines.append(f"| {one.paper} | {paper.get(one.paper, '')} | {values} |")
    return "\n".join(lines) + "\n"


def _draw(results: Path, pictures: Path) -> int:
    """Draw what the studies of both papers wrote; return the exit status."""
    try:
        for path in draw(results, pictures, tuple(sorted(ARMS))):
            print(f"drew {path}")
    except FileNotFoundError as error:
        print(f"paceline bench testbeds: no {error.filename}: run the paper with --fitted first", file=sys.stderr)
        return 2
    return 0


def _worlds_of(paper: str) -> list[str]:
    return sorted(path.stem for path in FOLDER.glob(f"{paper}-*.json"))


def _made(world: WorldSpec, data: str, count: int, seed: int) -> tuple[WorldSpec, Log]:
    """Make so many texts, of each domain in turn."""
    load, domains = world.loads[data], world.domains
    lengths = round(load.prompt_tokens.value), round(load.output_tokens.value)
    return world, made(world, [Wanted(domains[i % len(domains)], *lengths) for i in range(count)], seed)


def _recorded(world: WorldSpec, log: Log, mixture: str, _: int, seed: int) -> tuple[WorldSpec, Log]:
    """Take every second text of the recording, and for lengths to be chosen on the others."""
    first = int(seed >= OTHER)
    drafters = {name: own.model_copy(update={"guesses": own.guesses[first::2]}) for name, own in log.drafters.items()}
    log = log.model_copy(update={"texts": log.texts[first::2], "drafters": drafters})
    return over_recording(world, log, mixture)


def _rounded(row: Figures, first: RequestTimes) -> dict[str, Any]:
    named = {one.name: getattr(row, one.name) for one in fields(row) if one.name != "details"}
    found = {name: round(own, 5) if isinstance(own, float) else own for name, own in named.items()}
    return {**found, "cost": round(row.cost, 4), "details": row.details.kept(first)}


if __name__ == "__main__":
    sys.exit(main())

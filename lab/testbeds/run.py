"""`./paceline lab testbeds`: simulate the testbeds of CoSine and FASER: arms in worlds of stated numbers.

The code that decides is the one that serves; devices, links, memory and prices are those of `lab/worlds`, drafts are
made with stated statistics or recorded. Stated worlds are points with one seed. With `--fitted`, arms run in the worlds
of `lab/worlds/fitted.json`, which fit the paper's baselines, and figures are bands over these (docs/papers.md).
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Listed
from pathlib import Path
from typing import Any, NamedTuple

from app.config import ROOT
from bench.help import parser as parser_of
from bench.load.arrivals import poisson, trace, window
from bench.report_header import heading
from lab.simulate.log import Log
from lab.testbeds.arms import ARMS, Arm
from lab.testbeds.comparisons import COMPARISONS, READINGS, bands, compared
from lab.testbeds.figures import Figures
from lab.testbeds.fitted import read_fitted
from lab.testbeds.play import play, tuned
from lab.testbeds.tables import arms_table, bands_table, compared_table
from lab.testbeds.texts import half, made, over_recording, statistics, wanted_of
from lab.testbeds.worlds import FOLDER, WorldSpec, read_world, world_names

RESULTS = ROOT / "lab" / "results"
TRACES = {name: ROOT / "bench" / "data" / f"azure-2023-{name}.csv.gz" for name in ("conversation", "code")}
FEWEST_TEXTS, WAVES = 10, 2  # of a closed loop: so many texts, and so many for each stream
COSINE_OF = tuple(f"cosine of {n}" for n in range(1, 5))
# Of the fitted worlds: CoSine's ablations without a band, and one expert's chains, which specinfer's trees contain.
LEFT_OUT = {"cosine": ("vanilla", "cosine without routing", "cosine without control", *COSINE_OF), "faser": ()}
OTHER = 1000  # added to the seed for the data on which an arm's variant is chosen


class Load(NamedTuple):
    """Closed loops of so many streams, or requests at these seconds; `texts`: requests in all."""

    name: str
    streams: int
    texts: int
    arrivals_s: list[float] | None = None


class Place(NamedTuple):
    """A world, and what makes a recording of so many texts from a seed."""

    world: WorldSpec
    source: Callable[[int, int], Log]


Rows = dict[str, Figures]  # by arm


def main(argv: Listed[str] | None = None) -> int:
    args = parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    names = args.worlds or world_names(args.paper, FOLDER)
    try:
        worlds = {name: read_world(FOLDER / f"{name}.json") for name in names}
    except (OSError, ValueError) as error:
        print(f"paceline lab testbeds: {error}", file=sys.stderr)
        return 2
    head = heading("lab testbeds", argv)
    if args.fitted:
        (args.out / f"testbeds-{args.paper}-fitted.json").write_text(dumps(head | fitted(args.paper)))
        return 0
    for name, world in worlds.items():
        print(f"## {name}\n\n{world.about}\n", flush=True)
        kind = [name, *([args.data] if args.data else []), *(["recorded"] if args.log else [])]
        (args.out / f"testbeds-{'-'.join(kind)}.json").write_text(dumps(head | stated(args.paper, world, args)))
    return 0


def parse_args(argv: Listed[str] | None) -> argparse.Namespace:
    parser = parser_of("lab testbeds", __doc__)
    parser.add_argument("paper", choices=sorted(ARMS), help="whose testbed")
    parser.add_argument("--fitted", action="store_true", help="bands over the fitted worlds, each under its own load")
    known = [name for paper in sorted(ARMS) for name in world_names(paper, FOLDER)]
    parser.add_argument("--worlds", nargs="+", choices=known, help="default: all of the paper's")
    parser.add_argument("--data", help="data set whose lengths requests have (default: the first)")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16], help="closed loops of so many requests")
    parser.add_argument("--rates", type=float, nargs="+", default=[], help="also arrivals at so many requests/s")
    parser.add_argument("--arrivals", choices=["poisson", *TRACES], default="poisson", help="pattern of the arrivals")
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds of arrivals")
    parser.add_argument("--log", type=Path, help="drafts of a recording instead of made ones; its texts' lengths hold")
    parser.add_argument("--mixture", default="smol-general", help="the recording's drafter trained on the mixture")
    parser.add_argument("--seed", type=int, default=0, help="of texts, drafts and arrivals")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the result files")
    args = parser.parse_args(argv)
    if min([*args.batches, *args.rates], default=1) <= 0:
        parser.error("batches and rates are above 0")
    return args


def simulate(
    paper: str, place: Place, loads: Listed[Load], seed: int, without: Listed[str] = ()
) -> tuple[list[Rows], dict[str, Any]]:
    """Run the arms under every load and print the means; return the figures by load, and what goes into a file."""
    arms = [arm for arm in ARMS[paper](place.world) if arm.name not in without]
    rows = [run_arms(place, arms, load, seed) for load in loads]
    for load, own in zip(loads, rows, strict=True):
        print(arms_table(load.name, own), flush=True)
    names = [load.name for load in loads]
    return rows, {name: {arm: row.record() for arm, row in own.items()} for name, own in zip(names, rows, strict=True)}


def stated(paper: str, world: WorldSpec, args: argparse.Namespace) -> dict[str, Any]:
    """Run a stated world under the loads that the arguments ask for; print the quotients, and return all figures."""
    data = args.data or next(iter(world.loads))
    if data not in world.loads:
        raise SystemExit(f"paceline lab testbeds: no data set {data!r} in this world, only {', '.join(world.loads)}")
    place = _recorded(world, args.log, args.mixture) if args.log else _made(world, data)
    texts = place.source(FEWEST_TEXTS * len(world.domains), args.seed)
    drafts = statistics(texts, round(world.acceptance.length.value))
    own = loads(args)
    rows, records = simulate(paper, place, own, args.seed)
    quotients = {one.paper: [compared(one, figures) for figures in rows] for one in COMPARISONS[paper]}
    print(compared_table(world.paper, [load.name for load in own], quotients), flush=True)
    return {"world": world.model_dump(), "data": data, "drafts": drafts, "loads": records, "compared": quotients}


def fitted(paper: str) -> dict[str, Any]:
    """Run the fitted worlds of a paper, each under its own load; print the bands, and return all figures."""
    found: dict[str, Any] = {"worlds": {}, "readings": {}}
    rows: dict[str, Rows] = {}
    worlds = {name: one for name, one in read_fitted(FOLDER).items() if one.like in world_names(paper, FOLDER)}
    for name, one in worlds.items():
        world, load = read_world(FOLDER / f"{one.like}.json").with_values(one.values), one.load
        text = f"{name}, {load.data}, {load.batch} at once"
        loop = [Load(text, load.batch, load.texts)]
        (own,), records = simulate(paper, _made(world, load.data), loop, load.seed, LEFT_OUT[paper])
        tokens = load.batch * world.loads[load.data].output_tokens.value
        rows[name] = {arm: row.sustained(tokens) for arm, row in own.items()}
        found["worlds"][name] = {"facts": one.facts, "fit_error": one.fit_error, "loads": records}
    for reading in READINGS[paper]:
        names = [name for name, one in worlds.items() if reading in one.readings]
        found["readings"][reading] = {"worlds": names} | bands(paper, reading, [rows[name] for name in names])
        print(bands_table(reading, found["readings"][reading]), flush=True)
    return found


def run_arms(place: Place, arms: Listed[Arm], load: Load, seed: int) -> Rows:
    """Run arms under one load; where an arm has several variants, the one that is fastest on other data."""
    log, other = place.source(load.texts, seed), place.source(load.texts, seed + OTHER)
    rows: Rows = {}
    for arm in arms:
        best = tuned(place.world, arm, other, load.streams, seed + OTHER, load.arrivals_s)
        rows[arm.name] = play(place.world, best, log, load.streams, seed, load.arrivals_s)
    return rows


def loads(args: argparse.Namespace) -> list[Load]:
    found = [Load(f"batch {count}", count, count * max(WAVES, -(-FEWEST_TEXTS // count))) for count in args.batches]
    for rate in args.rates:
        if args.arrivals == "poisson":
            came = poisson(rate, args.seconds, 1, args.seed)
        else:
            came = window(trace(TRACES[args.arrivals]), args.seconds, rate, args.seed)
        found.append(Load(f"{rate:g}/s, {args.arrivals}", 1, len(came), [one.at_s for one in came]))
    return found


def dumps(found: Mapping[str, Any]) -> str:
    """Return JSON in which a list or mapping of plain values takes one line."""
    text = json.dumps(found, indent=1)
    flat = re.compile(r"([\[{])\n\s*([^\[\]{}]*?)\n\s*([\]}])")
    return flat.sub(lambda one: one[1] + re.sub(r"\n\s*", " ", one[2]) + one[3], text) + "\n"


def _made(world: WorldSpec, data: str) -> Place:
    return Place(world, lambda count, seed: made(world, wanted_of(world, data, count), seed))


def _recorded(world: WorldSpec, file: Path, mixture: str) -> Place:
    """Return a world with a recording's drafters and every second text; variants are chosen on the others."""
    log = Log.read(file)
    own, _ = over_recording(world, log, mixture)
    return Place(own, lambda _, seed: over_recording(world, half(log, int(seed >= OTHER)), mixture)[1])


if __name__ == "__main__":
    sys.exit(main())

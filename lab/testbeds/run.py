"""`./paceline lab testbeds`: simulate the testbeds of CoSine and FASER: arms in worlds of stated numbers.

The code that decides is the one that serves; devices, links, memory and prices are those of `lab/worlds`, drafts are
made with stated statistics or recorded. `suite` runs the worlds and loads of `lab/worlds/suite.toml`. `cosine` and
`faser` with `--fitted` run their arms in the worlds of `lab/worlds/fitted.json`, which fit the paper's baselines;
figures are bands over these (docs/papers.md).
"""

import argparse
import json
import re
import sys
from collections.abc import Mapping
from collections.abc import Sequence as Listed
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from app.config import ROOT
from bench.help import count
from bench.help import parser as parser_of
from bench.report_header import heading
from lab.testbeds.arms import ARMS
from lab.testbeds.comparisons import READINGS, bands
from lab.testbeds.fitted import read_fitted
from lab.testbeds.play import loop, play, tuned
from lab.testbeds.suite import OTHER, Rows, cells_of, made_place, read_suite, run_cell, summary
from lab.testbeds.tables import arms_table, bands_table, quotients_table, summary_table
from lab.testbeds.worlds import FOLDER, read_world, world_names

RESULTS = ROOT / "lab" / "results"
# Arms without a band: one expert's chains, which specinfer's trees contain.
LEFT_OUT = {"cosine": ("vanilla",), "faser": ()}


def main(argv: Listed[str] | None = None) -> int:
    args = parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    head = heading("lab testbeds", argv)
    try:
        if args.what == "suite":
            run_suite(args, head)
        else:
            _write(args.out / f"testbeds-{args.what}-fitted.json", head | fitted(args.what))
    except (OSError, ValueError) as error:
        print(f"paceline lab testbeds: {error}", file=sys.stderr)
        return 2
    return 0


def parse_args(argv: Listed[str] | None) -> argparse.Namespace:
    parser = parser_of("lab testbeds", __doc__)
    parser.add_argument("what", choices=["suite", *sorted(ARMS)], help="the suite, or whose testbed")
    parser.add_argument("--fitted", action="store_true", help="bands over the fitted worlds, each under its own load")
    parser.add_argument("--seeds", type=int, nargs="+", help="of texts, drafts and arrivals (default: the suite's)")
    parser.add_argument("--only", type=re.compile, default="", help="cells of the suite whose name has this expression")
    parser.add_argument("--chosen", type=Path, help="result of the suite whose choices of lengths and drafters hold")
    parser.add_argument("--jobs", type=count, default=1, help="cells of the suite at the same time")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the result files")
    args = parser.parse_args(argv)
    if args.fitted == (args.what == "suite"):
        parser.error("a paper's worlds are run with --fitted, the suite without")
    return args


def run_suite(args: argparse.Namespace, head: Mapping[str, Any]) -> None:
    """Run the suite's cells; print their quotients, and write what there is after each."""
    suite = read_suite(FOLDER)
    seeds, every = args.seeds or [*suite.seeds], [*cells_of(suite)]
    cells = [cell for cell in every if re.search(args.only, cell.name)]
    earlier = json.loads(args.chosen.read_text())["cells"] if args.chosen else {}
    chosen = {name: cell["chosen"] for name, cell in earlier.items()}
    found: dict[str, Any] = {}
    with ProcessPoolExecutor(args.jobs) as pool:
        each = (map if args.jobs == 1 else pool.map)(
            partial(run_cell, seeds=seeds, folder=FOLDER, chosen=chosen), cells
        )
        for cell, own in zip(cells, each, strict=True):
            found[cell.name] = own
            print(quotients_table(cell.name, own), flush=True)
            left = [cell.name for cell in every if cell.name not in found]
            whole = {"seeds": seeds, "summary": summary(found), "not_run": left, "cells": found}
            _write(args.out / "testbeds-suite.json", {**head, **whole})
    print(summary_table(summary(found)), flush=True)


def fitted(paper: str) -> dict[str, Any]:
    """Run the fitted worlds of a paper, each under its own load; print the bands, and return all figures."""
    found: dict[str, Any] = {"worlds": {}, "readings": {}}
    rows: dict[str, Rows] = {}
    worlds = {name: one for name, one in read_fitted(FOLDER).items() if one.like in world_names(paper, FOLDER)}
    for name, one in worlds.items():
        world, load = read_world(FOLDER / f"{one.like}.json").with_values(one.values), loop(one.load.batch)
        place, seed = made_place(world, one.load.data), one.load.seed
        log, other = (place.source(one.load.texts, number) for number in (seed, seed + OTHER))
        arms = [arm for arm in ARMS[paper](world) if arm.name not in LEFT_OUT[paper]]
        rows[name] = {
            arm.name: play(world, tuned(world, arm, other, load, seed + OTHER), log, load, seed) for arm in arms
        }
        text = f"{name}, {one.load.data}, {load.name}"
        print(arms_table(text, rows[name]), flush=True)
        records = {text: {arm: row.record() for arm, row in rows[name].items()}}
        found["worlds"][name] = {"facts": one.facts, "fit_error": one.fit_error, "loads": records}
    for reading in READINGS[paper]:
        names = [name for name, one in worlds.items() if reading in one.readings]
        found["readings"][reading] = {"worlds": names} | bands(paper, reading, [rows[name] for name in names])
        print(bands_table(reading, found["readings"][reading]), flush=True)
    return found


def dumps(found: Mapping[str, Any]) -> str:
    """Return JSON in which a list or mapping of plain values takes one line."""
    text = json.dumps(found, indent=1)
    flat = re.compile(r"([\[{])\n\s*([^\[\]{}]*?)\n\s*([\]}])")
    return flat.sub(lambda one: one[1] + re.sub(r"\n\s*", " ", one[2]) + one[3], text) + "\n"


def _write(path: Path, found: Mapping[str, Any]) -> None:
    path.write_text(dumps(found))


if __name__ == "__main__":
    sys.exit(main())

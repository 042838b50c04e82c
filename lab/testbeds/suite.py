"""Run the suite of `lab/worlds/suite.toml`: every arm in every world under every load, seed by seed.

What an arm leaves open is chosen once in each cell, on other texts or another window of a trace. A quotient is of
tokens/s in closed loops, and of the inverse seconds of a request under arrivals.
"""

import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Listed
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from app.config import ROOT
from bench.load.arrivals import trace, window
from bench.stats import both_bounds
from lab.simulate.log import Log
from lab.testbeds.arms import ARMS, Choice
from lab.testbeds.figures import Figures
from lab.testbeds.fitted import read_fitted
from lab.testbeds.play import Load, loop, play, tuned
from lab.testbeds.texts import half, made, over_recording, wanted_of
from lab.testbeds.worlds import FOLDER, Part, WorldSpec, read_world
from lab.ways import OFF, PACE

CODE_TRACE = ROOT / "bench" / "data" / "azure-2023-code.csv.gz"
RECORDINGS = ROOT / "lab" / "data"
FEWEST_TEXTS = 40  # made for a load, or one for each of its streams; they come round
OTHER = 1000  # added to the seed for the data on which arms are tuned
TUNED_WAVES, TUNED_FEWEST = 1, 10  # requests that count there
BEST = "the best baseline"
Rows = dict[str, Figures]  # by arm


class PaperArms(Part):
    """The roles of a paper's arms; those without one, plain decoding among them, are baselines."""

    own: tuple[str, ...]
    apart: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


class Row(Part):
    world: str
    name: str = ""  # where it is not the world's
    data: str = ""  # whose lengths requests have; empty: the world's first
    at_once: tuple[int, ...] = ()
    rates: tuple[float, ...] = ()  # requests/s, on average over a window of the code trace
    seconds: float = 60.0
    values: Mapping[str, float] = {}  # in place of the world's numbers
    recording: str = ""  # whose drafts and lengths take the place of made ones,
    mixture: str = ""  # and its drafter trained on the mixture


class Suite(Part):
    seeds: tuple[int, ...]
    papers: Mapping[str, PaperArms]
    rows: tuple[Row, ...]


class Place(NamedTuple):
    """A world, and what makes a recording of so many texts from a seed."""

    world: WorldSpec
    source: Callable[[int, int], Log]


class Cell(NamedTuple):
    name: str
    paper: str
    roles: PaperArms
    row: Row
    streams: int  # in closed loops; 0: arrivals
    rate: float = 0.0


def read_suite(folder: Path = FOLDER) -> Suite:
    """Read the suite. Raises OSError, ValueError."""
    return Suite.model_validate(tomllib.loads((folder / "suite.toml").read_text()))


def cells_of(suite: Suite) -> Iterator[Cell]:
    for row in suite.rows:
        paper = row.world.partition("-")[0]
        name = ", ".join(filter(None, (row.name or row.world, row.data)))
        for streams in row.at_once:
            yield Cell(f"{name}, {streams} at once", paper, suite.papers[paper], row, streams)
        for rate in row.rates:
            yield Cell(f"{name}, {rate:g}/s", paper, suite.papers[paper], row, 0, rate)


def run_cell(
    cell: Cell, seeds: Listed[int], folder: Path, chosen: Mapping[str, Mapping[str, Choice]]
) -> dict[str, Any]:
    """Run a cell with every seed; return the figures of its arms, and the quotients between them.

    `chosen`: by cell and arm, what is not chosen again.
    """
    began_s = time.process_time()
    place, (other_load, *loads) = place_of(cell.row, folder), [load_of(cell, seed) for seed in (OTHER, *seeds)]
    other = place.source(_texts(other_load), OTHER)
    known = chosen.get(cell.name, {})
    arms = [
        arm.at([known[arm.name]]) if arm.name in known else tuned(place.world, arm, other, other_load, OTHER)
        for arm in ARMS[cell.paper](place.world)
        if arm.name not in cell.roles.left_out
    ]
    rows: list[Rows] = []
    for seed, load in zip(seeds, loads, strict=True):
        log = place.source(_texts(load), seed)
        rows.append({arm.name: play(place.world, arm, log, load, seed) for arm in arms})
    speeds = [{arm: load.speed(own) for arm, own in figures.items()} for load, figures in zip(loads, rows, strict=True)]
    return {
        "quotients": quotients(speeds, cell.roles),
        "chosen": {arm.name: arm.choice for arm in arms},
        "arms": {
            arm.name: {seed: row[arm.name].record() for seed, row in zip(seeds, rows, strict=True)} for arm in arms
        },
        "process_s": round(time.process_time() - began_s, 1),
    }


def quotients(speeds: Listed[Mapping[str, float]], roles: PaperArms) -> dict[str, Any]:
    """Return, of `pace` and the paper's own arms, their speed over others' by seed, with bounds over the seeds."""
    others = {PACE, *roles.own, *roles.apart}
    baselines = [name for name in speeds[0] if name not in others]

    def over(arm: str, names: Listed[str]) -> dict[str, Any]:
        new, old = [one[arm] for one in speeds], [max(map(one.__getitem__, names)) for one in speeds]
        by_seed = [round(a / b, 4) for a, b in zip(new, old, strict=True)]
        return {"by_seed": by_seed, "mean_and_bounds": both_bounds(new, old)}

    found = {f"{PACE} over {OFF}": over(PACE, [OFF]), f"{PACE} over {BEST}": over(PACE, baselines)}
    for name in roles.own:
        found |= {f"{PACE} over {name}": over(PACE, [name]), f"{name} over {BEST}": over(name, baselines)}
    return found


def summary(cells: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return of each quotient over the cells that have it: their number, the least lower bound, and of the means the
    least and the median.
    """
    bounds: dict[str, list[list[float]]] = {}
    for cell in cells.values():
        for name, own in cell["quotients"].items():
            bounds.setdefault(name, []).append(own["mean_and_bounds"])
    return {
        name: {
            "cells": len(own),
            "least_lower": min(lower for _, lower, _ in own),
            "least": min(mean for mean, _, _ in own),
            "median": round(median(mean for mean, _, _ in own), 4),
        }
        for name, own in bounds.items()
    }


def place_of(row: Row, folder: Path) -> Place:
    fitted = read_fitted(folder).get(row.world)
    world = read_world(folder / f"{fitted.like if fitted else row.world}.json")
    world = world.with_values({**(fitted.values if fitted else {}), **row.values})
    if not row.recording:
        return made_place(world, row.data or next(iter(world.loads)))
    log = Log.read(RECORDINGS / f"{row.recording}.json.gz")
    own, _ = over_recording(world, log, row.mixture)  # every second text is for tuning
    return Place(own, lambda _, seed: over_recording(world, half(log, int(seed >= OTHER)), row.mixture)[1])


def made_place(world: WorldSpec, data: str) -> Place:
    return Place(world, lambda count, seed: made(world, wanted_of(world, data, count), seed))


def load_of(cell: Cell, seed: int) -> Load:
    if cell.streams:
        return loop(cell.streams, TUNED_WAVES, TUNED_FEWEST) if seed == OTHER else loop(cell.streams)
    came = window(trace(CODE_TRACE), cell.row.seconds, cell.rate, seed)
    return Load(cell.name, 1, len(came), [one.at_s for one in came])


def _texts(load: Load) -> int:
    return min(load.requests, max(FEWEST_TEXTS, load.streams))

"""`./paceline bench testbeds PAPER --fitted`: worlds that fit a paper's baselines, and bands of its figures.

Samples worlds within the bounds of their free numbers, screens them by the cost model on facts about baselines alone,
and runs the segments in some of those that fit: the median and corners, each at one load. Then one
number at a time is moved to its bounds in the median world, to see which one a headline hangs on, and assumptions
are varied together (`lab.testbeds.studies`).
"""

import statistics
from collections.abc import Mapping
from collections.abc import Sequence as Listed
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np

from lab.simulate.load import RequestTimes
from lab.testbeds.arms import ARMS, Arm
from lab.testbeds.cost_model import CostModel
from lab.testbeds.details import requests_table, steps_table
from lab.testbeds.flags import flags
from lab.testbeds.play import Figures, alone, compared, play, tuned, with_length
from lab.testbeds.sample import Fit, fitted, moved
from lab.testbeds.studies import STUDIES, Load, Reading, Study
from lab.testbeds.texts import Wanted, made
from lab.testbeds.worlds import FOLDER, WorldSpec, read_world

SAMPLES = 200
OTHER = 1000  # added to the seed for the data on which lengths are chosen
WIDEST = 0.25  # half of a band over its middle, for a figure to count as reproduced
SHOWN = 7  # numbers moved, in a table
KEPT = 0.8  # of worlds in which ablations must keep their order


def study(paper: str, seed: int) -> dict[str, Any]:
    """Screen, simulate, and return all figures; `took_s`: of this machine."""
    own, began_s = STUDIES[paper], perf_counter()
    worlds = {name: read_world(FOLDER / f"{name}.json") for name in own.worlds}
    found: dict[str, Any] = {"flags": flags(paper, worlds), "readings": {}}
    print(found["flags"], flush=True)
    facts = [reading.facts for reading in own.readings]
    by_world = {name: fitted(world, facts, SAMPLES, seed) for name, world in worlds.items()}
    for i, reading in enumerate(own.readings):
        fits = {name: by_reading[i] for name, by_reading in by_world.items()}
        best = max(fits, key=lambda name: int(fits[name].fits.sum()))
        found["readings"][reading.name] = _reading(paper, own, reading, fits[best], seed) | {
            "world": best,
            "fitting": {name: int(fit.fits.sum()) for name, fit in fits.items()},
            "sampled": SAMPLES,
        }
        print(reading_text(reading.name, found["readings"][reading.name]), flush=True)
        median = {arm: row["details"] for arm, row in found["readings"][reading.name]["worlds"][0]["arms"].items()}
        print(f"In the median world:\n\n{requests_table(median)}\n{steps_table(median)}", flush=True)
        print(beside_text(found["readings"][reading.name]), flush=True)
    found["took_s"] = round(perf_counter() - began_s, 1)
    print(f"The study took {found['took_s']:.0f} s.", flush=True)
    return found


def _reading(paper: str, own: Study, reading: Reading, fit: Fit, seed: int) -> dict[str, Any]:
    arms = [arm for arm in ARMS[paper].arms(fit.worlds[0]) if arm.name not in own.left_out]
    chosen, rows, singles = fit.chosen(own.chosen), [], []
    for i, number in enumerate(chosen):
        load, world = own.loads[i % len(own.loads)], fit.worlds[number]
        found = simulated(world, _with_lengths(arms, fit.model, number, world, load), load, seed + i)
        rows.append(_sustained(world, load, found))
        singles.append(alone(world, arms[0], made(world, _wanted(world, load)[:1], seed), seed))
        print(f"{reading.name}, world {number}, {load.data} {load.batch}: {_short(rows[-1])}", flush=True)
    comparisons = ARMS[paper].comparisons
    values = {one.paper: [compared(one, row) for row in rows] for one in comparisons}
    return {
        "worlds": [
            {
                "number": number,
                "values": fit.values[number],
                "facts": {name: round(float(figure[number]), 3) for name, figure in fit.found.items()},
                "load": own.loads[i % len(own.loads)]._asdict(),
                "alone": {name: round(value, 4) for name, value in singles[i]._asdict().items()},
                "arms": {name: _kept(row, singles[i]) for name, row in rows[i].items()},
            }
            for i, number in enumerate(chosen)
        ],
        "bands": {name: band([one for one in own_values if one is not None]) for name, own_values in values.items()},
        "order": order_kept(own.order, rows),
        "verdicts": {
            name: verdict(number, [one for one in values[name] if one is not None])
            for name, number in reading.headlines.items()
        },
        "sensitivity": sensitivity(paper, reading, fit, chosen[0], own, arms, seed),
        "sensitive": reading.sensitive[0],
        "headline": reading.headlines.get(reading.sensitive[0], 1.0),
        "variations": variations(paper, reading, fit, chosen[0], own, arms, seed),
        "facts moved": moved(fit.worlds[chosen[0]], reading.facts, seed),
    }


def simulated(world: WorldSpec, arms: Listed[Arm], load: Load, seed: int) -> dict[str, Figures]:
    """Run the arms in a world; of drafters, ways and lengths to choose from, the best on other data."""
    wanted = _wanted(world, load)
    log = made(world, wanted, seed)
    if any(arm.lengths or arm.one_of or arm.ways for arm in arms):
        other = made(world, wanted, seed + OTHER)
        arms = [tuned(world, arm, other, load.batch, seed + OTHER) for arm in arms]
    return {arm.name: play(world, arm, log, load.batch, seed) for arm in arms}


def _sustained(world: WorldSpec, load: Load, rows: Mapping[str, Figures]) -> dict[str, Figures]:
    """Return the figures with the tokens/s of closed loops that go on (Little's law): no last wave thins out."""
    tokens = load.batch * _tokens(world, load)[1]
    return {name: replace(row, tokens_per_s=tokens / row.request_s) for name, row in rows.items()}


def _wanted(world: WorldSpec, load: Load) -> list[Wanted]:
    prompt, output = _tokens(world, load)
    return [Wanted(world.domains[i % len(world.domains)], prompt, output) for i in range(load.texts)]


def _tokens(world: WorldSpec, load: Load) -> tuple[int, int]:
    lengths = world.loads[load.data]
    return round(lengths.prompt_tokens.value), round(lengths.output_tokens.value)


def _with_lengths(arms: Listed[Arm], model: CostModel, number: int, world: WorldSpec, load: Load) -> list[Arm]:
    """Return the arms, baselines with the length that the cost model finds best in this one of its worlds."""
    found = []
    for arm in arms:
        if arm.name in model.chains:
            length = int(model.predict(arm.name, load.batch, *_tokens(world, load)).length[number])
            arm = replace(with_length(arm, f"{arm.lengths[0].partition(':')[0]}:{length}"), lengths=())
        found.append(arm)
    return found


def sensitivity(
    paper: str, reading: Reading, fit: Fit, number: int, own: Study, arms: Listed[Arm], seed: int
) -> dict[str, list[float | None]]:
    """Return the comparison's value in the median world, and with each of the numbers at its bounds, widest first."""
    world = fit.worlds[number]
    changes = [(place, at) for place in own.numbers for at in (world.free[place].low, world.free[place].high)]
    worlds = [world, *(world.with_values({place: at}) for place, at in changes)]
    middle, *others = _headlines(paper, reading, worlds, [own.moved] * len(worlds), arms, seed)
    found = {place: others[2 * i : 2 * i + 2] for i, place in enumerate(own.numbers)}
    widest = sorted(found, key=lambda place: -abs((found[place][0] or 0.0) - (found[place][1] or 0.0)))
    return {"as it is": [middle, middle]} | {place: found[place] for place in widest}


def variations(
    paper: str, reading: Reading, fit: Fit, number: int, own: Study, arms: Listed[Arm], seed: int
) -> dict[str, float | None]:
    """Return the comparison's value under each variation of the assumptions; None: no world fits its facts."""
    if not own.variations:
        return {}
    worlds: list[WorldSpec | None] = []
    for one in own.variations:
        fitting = fit.within(one.facts).chosen(1) if one.facts else [number]
        worlds.append(fit.worlds[fitting[0]].with_values(one.values) if fitting else None)
    known = [i for i, world in enumerate(worlds) if world is not None]
    loads = [own.variations[i].load or own.moved for i in known]
    values = _headlines(paper, reading, [world for world in worlds if world is not None], loads, arms, seed)
    by_place = dict(zip(known, values, strict=True))
    return {one.name: by_place.get(i) for i, one in enumerate(own.variations)}


def _headlines(
    paper: str, reading: Reading, worlds: Listed[WorldSpec], loads: Listed[Load], arms: Listed[Arm], seed: int
) -> list[float | None]:
    """Return the comparison on which a reading's headline rests, over its one baseline, in each of these worlds."""
    name, baseline = reading.sensitive
    one = next(own for own in ARMS[paper].comparisons if own.paper == name)
    pair = [arm for arm in arms if arm.name in (one.arm, baseline)]
    model = CostModel(worlds, seed) if worlds else None
    found = []
    for i, (world, load) in enumerate(zip(worlds, loads, strict=True)):
        assert model is not None
        rows = simulated(world, _with_lengths(pair, model, i, world, load), load, seed)
        value = compared(one, _sustained(world, load, rows))
        found.append(None if value is None else round(value, 4))
    return found


def band(values: Listed[float]) -> dict[str, float]:
    """Return the median and the 5 and 95 % points of values over worlds."""
    low, median, high = (float(one) for one in np.percentile(values, [5, 50, 95]))
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
    part = statistics.fmean(kept) if kept else 0.0
    return {"falling": [*order], "part": round(part, 3), "is kept": part >= KEPT}


def reading_text(name: str, found: Mapping[str, Any]) -> str:
    """Return one reading's bands, verdicts and sensitivity as Markdown."""
    fitting = ", ".join(f"{count} of {found['sampled']} of {world}" for world, count in found["fitting"].items())
    moved = [*found["sensitivity"].items()]
    lines = [
        f"### {name}\n",
        f"Worlds that fit: {fitting}. Simulated: {len(found['worlds'])}.\n",
        "| figure | 5 % | median | 95 % |",
        "|---|---|---|---|",
        *(
            f"| {one} | {own['low']:.2f} | {own['median']:.2f} | {own['high']:.2f} |"
            for one, own in found["bands"].items()
        ),
        "\n| headline | paper | band | without 1 | narrow | holds it | reproduced |",
        "|---" * 7 + "|",
        *(
            f"| {one} | {own['paper']:.2f} | {own['low']:.2f} to {own['high']:.2f} "
            f"| {_yes(own['excludes 1'])} | {_yes(own['narrow'])} | {_yes(own['holds'])} | {_yes(own['reproduced'])} |"
            for one, own in found["verdicts"].items()
        ),
        f"\nOrder {' > '.join(found['order']['falling'])}: in {found['order']['part']:.0%} of the worlds.\n",
        "| number moved | at its low bound | at its high bound |",
        "|---|---|---|",
        *(f"| {place} | {low:.2f} | {high:.2f} |" for place, (low, high) in moved[:SHOWN]),
    ]
    return "\n".join(lines) + "\n"


def beside_text(found: Mapping[str, Any]) -> str:
    """Return, as Markdown, what a reading's assumptions do: which were varied, and how far each moves the facts."""
    lines = []
    if found["variations"]:
        name, number = found["sensitive"], found["headline"]
        lines += [
            f"| assumptions varied | {name} |",
            "|---|---|",
            *(
                f"| {one} | {'no world fits' if own is None else f'{own:.2f}'} |"
                for one, own in found["variations"].items()
            ),
            f"\n{_reached(number, found['variations'])}\n",
        ]
    facts = [*next(iter(found["facts moved"].values()), {})]
    lines += [
        f"| free number, at its bounds | {' | '.join(facts)} |",
        "|---" * (1 + len(facts)) + "|",
        *(
            f"| {place} | {' | '.join(f'{low:.2f}, {high:.2f}' for low, high in own.values())} |"
            for place, own in found["facts moved"].items()
        ),
    ]
    return "\n".join(lines) + "\n"


def _reached(number: float, values: Mapping[str, float | None]) -> str:
    """Say which variations come to the paper's number."""
    names = [name for name, value in values.items() if value is not None and value >= number]
    highest = max((value for value in values.values() if value is not None), default=0.0)
    if names:
        return f"{number:.2f} is reached by: {'; '.join(names)}."
    return f"None of them reaches {number:.2f}; the highest is {highest:.2f}."


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _short(row: Mapping[str, Figures]) -> str:
    base = next(iter(row.values())).tokens_per_s
    return ", ".join(f"{name} {own.tokens_per_s / base:.2f}" for name, own in row.items())


def _kept(row: Figures, first: RequestTimes) -> dict[str, Any]:
    """Return the figures of an arm that are kept."""
    names = (
        "tokens_per_s",
        "request_s",
        "first_token_s",
        "tokens_a_round",
        "drafted",
        "rejected",
        "lengths",
        "drafters",
        "way",
    )
    own = {name: getattr(row, name) for name in names}
    found = {name: round(value, 4) if isinstance(value, float) else value for name, value in own.items()}
    return {**found, "details": row.details.kept(first)}

"""`./paceline lab simulate shared`: FASER on one device that a target and its drafter share, part by part.

A load that swings from a valley to a peak and back, and closed loops, over a recording, with the
stated numbers of a device (lab/costs). Each arm adds a part of FASER to speculation of one length,
or takes a freedom from its controller. The code that decides is the one that serves; the simulation
has no early exit, so that the second part of the paper's stack is missing.
"""

import argparse
import json
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bench.load.arrivals import steps
from lab.cooperate.variants import OFF, Variant
from lab.simulate.load import met
from lab.simulate.log import Log
from lab.simulate.machines import build
from lab.simulate.shared_device import Sharing
from lab.simulate.world import MakeModelFree, Setting, World

CONTROLLED = "lengths, chunk and split"
COMMON = {"plan": "faser", "pruning": "off", "max_sequences": 512}
BASE = "length 4"
REPEATS = 2  # requests of each stream in a closed loop
FIXED_SPLIT, FIXED_CHUNK, FIXED_LENGTH = 32, 3, 4


def sharing_of(costs: Path, kappa: float | None) -> Sharing:
    """Read the stated numbers of the shared device beside the step costs in a file; `kappa` replaces its own."""
    sharing = Sharing.model_validate(json.loads(costs.read_text())["shared"])
    return sharing if kappa is None else sharing.model_copy(update={"kappa": kappa})


def stated(log: Log, sharing: Sharing, drafter: str) -> Log:
    """Return the recording with one drafter alone, which takes the stated times."""
    own = log.drafters[drafter].model_copy(update={"token_s": sharing.draft_token_s, "read_s": sharing.token_compute_s})
    return log.model_copy(update={"drafters": {drafter: own}})


def replay_shared(log: Log, args: argparse.Namespace, fresh: MakeModelFree) -> dict[str, Any]:
    """Run every arm in every closed loop and under the load that swings."""
    sharing = sharing_of(args.costs, args.kappa)
    log = stated(log, sharing, args.drafter)
    setting = Setting(1, 1, 1.0, 1e-3 * args.hop_ms, args.seed, False, args.drafter_slowdown, sharing)
    found: dict[str, Any] = {"device": sharing.model_dump(), "loads": {}}
    valley, peak = args.swing
    arrivals_s = [arrival.at_s for arrival in steps([valley, peak, valley], args.seconds, 1, args.seed)]
    loads: list[tuple[str, Setting, list[float] | None]] = [
        *((f"{count} at once", replace(setting, streams=count), None) for count in args.streams),
        (f"{valley:g}, {peak:g}, {valley:g} requests/s", setting, arrivals_s),
    ]
    for name, own, times in loads:
        rows = {}
        for variant in arms():
            world = run(log, variant, own, times, fresh)
            rows[variant.name] = {**_rounded(asdict(met(world))), "splits": _splits(world)}
        found["loads"][name] = rows
        print(table(name, rows), flush=True)
    return found


def arms() -> list[Variant]:
    """Return the arms: none, one length, FASER's parts one on the other, and its controller with a part held fixed."""
    joint = {**COMMON, "overlap": "joint"}
    fixed = {**COMMON, "overlap": "none"}
    return [
        Variant(OFF, COMMON, speculates=False, is_steered=False),
        *(Variant(f"length {n}", {**fixed, "lengths": f"fixed:{n}"}, is_steered=False) for n in (2, 4, 6)),
        Variant("lengths", fixed, is_steered=False),
        Variant(CONTROLLED, {**joint, "partition": "auto"}, is_steered=False),
        Variant("one length", {**joint, "partition": "auto", "lengths": f"fixed:{FIXED_LENGTH}"}, is_steered=False),
        Variant("one split", {**joint, "partition": FIXED_SPLIT}, is_steered=False),
        Variant(
            "one chunk and split",
            {**fixed, "partition": FIXED_SPLIT},
            chunk=FIXED_CHUNK,
            is_steered=False,
        ),
        Variant(
            "halves, one split", {**COMMON, "overlap": "always-halves", "partition": FIXED_SPLIT}, is_steered=False
        ),
        Variant("pace, tables left out", {"max_sequences": 512}, model_free=(), is_steered=False),
    ]


def run(log: Log, variant: Variant, setting: Setting, arrivals_s: list[float] | None, fresh: MakeModelFree) -> World:
    """Run requests through one arm, at these seconds or `streams` at a time, REPEATS for each stream."""
    world = build(log, variant, setting, fresh)
    if arrivals_s is None:
        texts = [*world.waiting]
        count = max(len(texts), REPEATS * setting.streams)
        world.waiting = deque(f"{texts[i % len(texts)]}.{i}" for i in range(count))
    world.run(arrivals_s)
    return world


def table(name: str, rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return one load as a Markdown table."""
    base = rows[BASE]
    lines = [
        name,
        f"| arm | tokens/s | / {BASE} | ms a token | / {BASE} | p95 of a request, s | tokens a round | splits |",
        "|---" * 8 + "|",
    ]
    for arm, row in rows.items():
        splits = ", ".join(f"{split}: {part:.2f}" for split, part in row["splits"].items())
        lines.append(
            f"| {arm} | {row['tokens_per_s']:.0f} | {row['tokens_per_s'] / base['tokens_per_s']:.2f} "
            f"| {1e3 * row['tpot_s']:.1f} | {row['tpot_s'] / base['tpot_s']:.2f} | {row['total_p95_s']:.2f} "
            f"| {row['tokens_per_round']:.2f} | {splits} |"
        )
    return "\n".join(lines) + "\n"


def _splits(world: World) -> dict[str, float]:
    """Return the part of the verifying time under each split that was used."""
    assert world.device is not None
    used_s = world.device.used_s
    return {
        f"{split.units} {'at once' if split.at_once else 'in turn'}": round(seconds / sum(used_s.values()), 4)
        for split, seconds in used_s.items()
        if seconds
    }


def _rounded(figures: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in figures.items()}

"""`./paceline lab settings`: compare `pace` with plain decoding in eighteen simulated settings.

Each setting is run with n-gram tables, with draft models alone, and with these drafting and verifying in turn, over
several orders of the texts. A rate is the geometric mean over the texts of tokens/s as a client sees them. `--vs FILE`
compares with an earlier result, e.g. of another version.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Listed
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from app.config import ROOT, THREAD_ENVIRONMENT

os.environ.update({**THREAD_ENVIRONMENT, **os.environ})  # before torch is loaded, as in the workers

from bench.help import count
from bench.help import parser as parser_of
from bench.report_header import heading
from lab.report import rate
from lab.simulate.log import Log, with_stated_drafters
from lab.simulate.machines import build
from lab.simulate.world import Setting
from lab.simulated import model_free, with_live_costs
from lab.ways import OFF, PACE, WAYS, Variant

DATA, COSTS = ROOT / "lab" / "data", ROOT / "lab" / "costs"
ARMS = {  # models and tables, models alone, and these without guesses ahead of verdicts
    "tables": WAYS[PACE],
    "models": WAYS["pace, models alone"],
    "in turn": Variant("pace, models in turn", {"overlap": "none"}, model_free=()),
}
STATED_STEP_S = 0.030  # of `stated-30ms.json`, one row
Rates = dict[str, dict[str, list[float]]]  # tokens/s by way, `off` or `pace`, and order


@dataclass(frozen=True, slots=True)
class Case:
    """A setting: a recording, the requests at once, and what replaces the recorded costs."""

    name: str
    recording: str
    streams: int
    is_stated: bool = True  # a target's step takes STATED_STEP_S, not what was recorded
    slowdown: float = 1.0  # of the drafters
    guess: float | None = None  # of a stated step, for one guess of any drafter; None: as recorded
    is_local: bool = False  # one process on the verifier's cores, no network
    phrases: str = "smol-phrases"  # of the recording's vocabulary


CASES = (
    Case("30ms,x4 at 1", "four", 1, slowdown=4.0),
    Case("30ms,x4 at 4", "four", 4, slowdown=4.0),
    Case("30ms,x4 at 16", "four", 16, slowdown=4.0),
    Case("30ms,x15 at 4", "four", 4, slowdown=15.0),
    Case("f32 at 1", "four", 1, is_stated=False),
    Case("f32 at 8", "four", 8, is_stated=False),
    Case("int8 at 1", "four-int8", 1, is_stated=False),
    Case("f32 local at 1", "four", 1, is_stated=False, is_local=True),
    Case("f32 local at 4", "four", 4, is_stated=False, is_local=True),
    *(
        Case(f"pair {str(guess)[1:]} at {streams}", "qwen", streams, guess=guess, phrases="none")
        for guess in (0.1, 0.25, 0.5)
        for streams in (1, 4, 16)
    ),
)


def main(argv: Listed[str] | None = None) -> int:
    args = parse_args(argv)
    old = json.loads(args.vs.read_text())["settings"] if args.vs else {}
    found: dict[str, Any] = {**heading("lab settings", argv), "orders": args.orders, "settings": {}}
    print(HEAD, flush=True)
    for case in CASES:
        if args.only is None or case.name in args.only:
            found["settings"][case.name] = rates = rates_of(case, args.orders)
            print(rows(case.name, rates, old.get(case.name)), flush=True)
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")
    if ratios := [ratio for _, ratio in compared(found["settings"], old)]:
        print(f"\npace over {args.vs}: least {min(ratios):.3f}, geometric mean {geometric_mean(ratios):.3f}")
    return 0


def parse_args(argv: Listed[str] | None) -> argparse.Namespace:
    parser = parser_of("lab settings", __doc__)
    parser.add_argument("--orders", type=count, default=3, help="orders of the texts")
    parser.add_argument("--only", nargs="+", choices=[case.name for case in CASES], metavar="NAME", help="settings")
    parser.add_argument("--vs", type=Path, help="an earlier result to compare with")
    parser.add_argument("--out", type=Path, help="file to write")
    return parser.parse_args(argv)


def rates_of(case: Case, orders: int) -> Rates:
    log = log_of(case)
    off = [rate_of(log, case, WAYS[OFF], order) for order in range(orders)]
    return {
        way: {OFF: off, PACE: [rate_of(log, case, arm, order) for order in range(orders)]} for way, arm in ARMS.items()
    }


def rate_of(log: Log, case: Case, arm: Variant, order: int) -> float:
    """Simulate one arm in one order; return the geometric mean over the texts of tokens/s."""
    setting = Setting(case.streams, seed=order, is_local=case.is_local, drafter_slowdown=case.slowdown)
    setting = with_live_costs(setting) if case.is_stated else setting
    world = build(log, arm, setting, lambda: model_free(log.vocab_size, case.phrases))
    world.run()
    return round(geometric_mean(map(rate, world.ends)), 4)


def log_of(case: Case) -> Log:
    log = recording(case.recording)
    if case.is_stated:
        log = log.model_copy(update={"costs": (COSTS / "stated-30ms.json").read_text()})
    return log if case.guess is None else with_stated_drafters(log, case.guess * STATED_STEP_S)


@cache
def recording(name: str) -> Log:
    return Log.read(DATA / f"{name}.json.gz")


COLUMNS = ("setting", "drafters", "off, tokens/s", "pace, tokens/s", "pace / off, by order", "pace / earlier pace")
HEAD = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"


def rows(name: str, rates: Rates, old: Rates | None) -> str:
    lines = []
    for way, own in rates.items():
        by_order = " ".join(f"{pace / off:.2f}" for pace, off in zip(own[PACE], own[OFF], strict=True))
        beside = f"{ratio(own, old[way]):.3f}" if old and way in old else ""
        off, pace = geometric_mean(own[OFF]), geometric_mean(own[PACE])
        lines.append(f"| {name} | {way} | {off:.1f} | {pace:.1f} | {pace / off:.2f}: {by_order} | {beside} |")
    return "\n".join(lines)


def compared(new: Mapping[str, Rates], old: Mapping[str, Rates]) -> Iterator[tuple[str, float]]:
    """Yield each setting that both results have, and by what `pace` is faster in the new one."""
    for name in new:
        if name in old:
            yield from ((f"{name}, {way}", ratio(new[name][way], old[name][way])) for way in ARMS if way in old[name])


def ratio(new: Mapping[str, list[float]], old: Mapping[str, list[float]]) -> float:
    return geometric_mean(a / b for a, b in zip(new[PACE], old[PACE], strict=False))


if __name__ == "__main__":
    sys.exit(main())

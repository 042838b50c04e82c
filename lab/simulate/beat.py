"""`./paceline lab simulate beat`: compare the controller's policy with policies that stay as they are.

`beat` runs bursts, ramps, slow drafters, a drafter that falls silent and long prompts, each with the
ticks of the controller and under the first policy, with and without tables, and counts what the
controller changed. `frozen` holds one field of the policy at each of several values, from light
loads to heavy ones: where the best value is the same at each load, there is nothing to steer.
Requests of two arms come at the same moments, so that they are compared in pairs.
"""

import argparse
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bench.load.arrivals import poisson, ramp, steps
from bench.stats import both_bounds
from lab.cooperate.variants import OFF, Variant
from lab.simulate.load import USED
from lab.simulate.log import Log, lengthened
from lab.simulate.machines import build
from lab.simulate.world import MakeModelFree, Setting, World

BEAT, BEATLESS = "beat", "first policy"
SCENES = (
    "burst",
    "ramp",
    "slow drafters",
    "slow drafters, burst",
    "a drafter falls silent",
    "long prompts",
    "long prompts, burst",
)
LONG = (1000, 4000)  # tokens before every other prompt, in turn
SLOW = 10.0  # times as slow as the other loads' drafters are those of the load of slow ones
BUSY, CROWDED = 4.0, 8.0  # a ramp's and a burst's highest rate, in times the lowest
FROZEN: Mapping[str, tuple[float, ...]] = {
    "max_batch_tokens": (64, 128, 256, 512, 1024, 2048, 4096),
    "prefill_chunk_tokens": (256, 512, 1024, 2048),
    "draft_wait_factor": (1.0, 1.5, 3.0, 6.0),
    "draft_wait_s": (0.03, 0.06, 0.125, 0.25, 1.0),
}
LOST = "lost to each load's best"
KINDS: Mapping[str, tuple[str, ...]] = {"models": (), "models and tables": USED}
NEAR = 0.02  # of the time of a request, by which another value must be better


@dataclass(frozen=True, slots=True)
class Scene:
    """A load: when requests come, by seed, how long prompts are, and what drafters do."""

    arrivals_s: Mapping[int, tuple[float, ...]]
    is_long: bool = False
    slowdown: float = 1.0  # of the drafters, beside the setting's
    silent_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Found:
    """The seconds of each request of an arm, by order of arrival, and what became of the policy."""

    total_s: list[float]
    is_long: list[bool]  # is its prompt one of those made longer?
    switches: Counter[str]
    tokens: int
    rounds: int

    def figures(self) -> dict[str, Any]:
        """Return the figures of a report."""
        short_s = [own for own, is_long in zip(self.total_s, self.is_long, strict=True) if not is_long]
        return {
            "total_s": round(statistics.fmean(self.total_s), 4),
            "total_p95_s": round(statistics.quantiles(self.total_s, n=20)[-1], 4),
            "short prompts, total_p95_s": round(statistics.quantiles(short_s, n=20)[-1], 4),
            "tokens_per_round": round(self.tokens / self.rounds, 4),
            "policy changes": dict(sorted(self.switches.items())),
        }


def replay_beat(log: Log, args: argparse.Namespace, fresh: MakeModelFree) -> dict[str, Any]:
    """Run every scene with and without beat."""
    found: dict[str, Any] = {"texts": len(log.texts), "seeds": args.seeds, "seconds": args.seconds, "scenes": {}}
    setting = _setting(args)
    for name, scene in zip(SCENES, scenes(log, args), strict=True):
        if name not in args.scenes:
            continue
        arms = {arm.name: play(log, arm, setting, scene, fresh) for arm in beat_arms()}
        rows = {arm: one.figures() for arm, one in arms.items()}
        for kind in KINDS:
            pair = (arms[f"{kind}, {way}"].total_s for way in (BEATLESS, BEAT))
            rows[f"{kind}, {BEATLESS}"]["over beat"] = both_bounds(*pair)
        found["scenes"][name] = {"requests": sum(map(len, scene.arrivals_s.values())), "arms": rows}
        print(table(name, rows), flush=True)
    return found


def replay_frozen(log: Log, args: argparse.Namespace, fresh: MakeModelFree) -> dict[str, Any]:
    """Hold each field of the policy at each value, at each load; tables left out."""
    found: dict[str, Any] = {"texts": len(log.texts), "seeds": args.seeds, "seconds": args.seconds, "fields": {}}
    setting = _setting(args)
    loads = {f"{rate:g} a second": steady(args, rate) for rate in args.rates}
    long = {f"{name}, long prompts": replace(scene, is_long=True) for name, scene in loads.items()}
    loads = long if args.long else loads | long
    for name in args.fields:
        rows = {
            load: {
                str(value): play(log, frozen(name, value, speculates=not args.plain), setting, scene, fresh)
                for value in FROZEN[name]
            }
            for load, scene in loads.items()
            if scene.is_long or name != "prefill_chunk_tokens"
        }
        means = {load: {v: statistics.fmean(one.total_s) for v, one in row.items()} for load, row in rows.items()}
        best = best_of(means)
        found["fields"][name] = {
            "total_s": {load: {v: round(mean, 4) for v, mean in row.items()} for load, row in means.items()},
            "figures": {load: {v: one.figures() for v, one in row.items()} for load, row in rows.items()},
            "paired": {
                load: {v: both_bounds(row[best["best value"]].total_s, one.total_s) for v, one in row.items()}
                for load, row in rows.items()
            },
            **best,
        }
        print(frozen_table(name, found["fields"][name]), flush=True)
    return found


def best_of(means: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Return the value that is best over all loads, and what each load's own best one gains on it.

    `means`: the mean seconds of a request, by load and value.
    """
    values = [*next(iter(means.values()))]
    best = min(values, key=lambda v: statistics.geometric_mean(row[v] for row in means.values()))
    gains = {load: row[best] / min(row.values()) - 1.0 for load, row in means.items()}
    return {
        "best value": best,
        LOST: {load: round(gain, 4) for load, gain in gains.items()},
        "moves with the load": max(gains.values()) > NEAR,
    }


def scenes(log: Log, args: argparse.Namespace) -> list[Scene]:
    """Return the loads in the order of SCENES; `args.rates[0]` is the lowest rate of those that swing."""
    rate, seconds = args.rates[0], args.seconds
    swing = [rate, CROWDED * rate, rate]
    burst = Scene(_by_seed(args, lambda seed: steps(swing, seconds, 1, seed)))
    first = next(iter(log.drafters))
    return [
        burst,
        Scene(_by_seed(args, lambda seed: ramp([rate, BUSY * rate, rate], seconds, 1, seed))),
        replace(steady(args, 2.0 * rate), slowdown=SLOW),
        replace(burst, slowdown=SLOW),
        replace(steady(args, 2.0 * rate), silent_s={first: seconds / 3.0}),
        replace(steady(args, rate), is_long=True),
        replace(burst, is_long=True),
    ]


def steady(args: argparse.Namespace, rate: float) -> Scene:
    """Return a load of one rate."""
    return Scene(_by_seed(args, lambda seed: poisson(rate, args.seconds, 1, seed)))


def beat_arms() -> list[Variant]:
    """Return the arms: no drafts, and models without and with tables, by beat and under the first policy."""
    return [
        Variant(OFF, model_free=(), speculates=False, is_steered=False),
        *(
            Variant(f"{kind}, {way}", model_free=tables, is_steered=way == BEAT)
            for kind, tables in KINDS.items()
            for way in (BEAT, BEATLESS)
        ),
    ]


def frozen(name: str, value: float, *, speculates: bool = True) -> Variant:
    """Return the arm of models alone, or of no drafts, under the first policy with one field changed."""
    return Variant(f"{name} {value}", model_free=(), speculates=speculates, is_steered=False, policy={name: value})


def play(log: Log, arm: Variant, setting: Setting, scene: Scene, fresh: MakeModelFree) -> Found:
    """Run an arm under a load, once for each seed."""
    own = replace(setting, drafter_slowdown=setting.drafter_slowdown * scene.slowdown, silent_s=dict(scene.silent_s))
    texts = lengthened(log, LONG, setting.seed) if scene.is_long else log
    worlds = []
    for seed, arrivals_s in scene.arrivals_s.items():
        world = build(texts, arm, replace(own, seed=seed), fresh)
        world.run(arrivals_s)
        worlds.append(world)
    return found_in(worlds)


def found_in(worlds: Iterable[World]) -> Found:
    """Read off what the requests of simulations that have ended took."""
    found = Found([], [], Counter(), 0, 0)
    tokens = rounds = 0
    for world in worlds:
        ends = [world.store.snapshot(record.id) for record in world.ended]
        ends.sort(key=lambda end: (end.record.created_s, end.record.id))
        found.total_s.extend((end.stats.last_token_s or 0.0) - end.record.created_s for end in ends)
        found.is_long.extend(len(end.record.prompt_ids) >= min(LONG) for end in ends)
        found.switches.update(world.switches)
        tokens, rounds = tokens + sum(len(end.tokens) for end in ends), rounds + sum(end.stats.rounds for end in ends)
    return replace(found, tokens=tokens, rounds=rounds)


def table(name: str, rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return one scene as a Markdown table."""
    lines = [
        name,
        "| arm | a request, s | p95 | p95, short prompts | tokens a round | over beat (bounds) | policy changes |",
        "|---" * 7 + "|",
    ]
    for arm, row in rows.items():
        ratio = row.get("over beat")
        shown = f"{ratio[0]:.3f} ({ratio[1]:.3f} to {ratio[2]:.3f})" if ratio else ""
        changes = ", ".join(f"{field} {count}" for field, count in row["policy changes"].items()) or "none"
        lines.append(
            f"| {arm} | {row['total_s']:.3f} | {row['total_p95_s']:.2f} "
            f"| {row['short prompts, total_p95_s']:.2f} | {row['tokens_per_round']:.2f} | {shown} "
            f"| {changes} |"
        )
    return "\n".join(lines) + "\n"


def frozen_table(name: str, found: Mapping[str, Any]) -> str:
    """Return one field's sweep as a Markdown table of mean seconds of a request."""
    rows: Mapping[str, Mapping[str, float]] = found["total_s"]
    values = [*next(iter(rows.values()))]
    lines = [
        f"{name}: best {found['best value']}, moves with the load: {found['moves with the load']}",
        f"| load | {' | '.join(values)} | lost by the best value |",
        "|---" * (len(values) + 2) + "|",
    ]
    for load, row in rows.items():
        shown = " | ".join(f"{row[value]:.3f}" for value in values)
        lines.append(f"| {load} | {shown} | {found[LOST][load]:.3f} |")
    return "\n".join(lines) + "\n"


def _by_seed(args: argparse.Namespace, make: Any) -> dict[int, tuple[float, ...]]:
    return {seed: tuple(arrival.at_s for arrival in make(seed)) for seed in range(args.seeds)}


def _setting(args: argparse.Namespace) -> Setting:
    slowdown, hop_s = args.slowdown[0], 1e-3 * args.hop_ms
    return Setting(1, args.verifiers, slowdown, hop_s, args.seed, drafter_slowdown=args.drafter_slowdown)

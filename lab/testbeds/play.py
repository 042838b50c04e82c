"""Run an arm in a world: a recording, made or real, goes through the simulator, and figures come out."""

import statistics
from collections import Counter
from dataclasses import replace
from functools import partial

from app.messages import FUSE
from app.speculation.baselines import BaselineController
from lab.simulate.events import Link
from lab.simulate.load import RequestTimes, met, run, times
from lab.simulate.log import Log
from lab.simulate.world import VERIFIERS, Setting, World
from lab.testbeds.adaspec import AdaSpecGuesser
from lab.testbeds.arms import ADASPEC_MOST, Arm, off
from lab.testbeds.figures import ExitCounts, Figures
from lab.testbeds.pipeinfer import PipeInfer
from lab.testbeds.roofline import exit_costs, kv_tokens, peak_flops, price_per_h, sharing, step_costs
from lab.testbeds.smurfs import ClimbingLength, Vote
from lab.testbeds.worlds import LinkSpec, WorldSpec


def play(
    world: WorldSpec, arm: Arm, log: Log, streams: int, seed: int, arrivals_s: list[float] | None = None
) -> Figures:
    """Run the arm's first variant: every text in closed loops of so many streams, or one at each of these seconds."""
    if arm.system == "pipeinfer":
        return _play_pipeinfer(world, arm, log, streams, arrivals_s)
    setting = setting_of(world, arm.drafters, streams, seed)
    if arm.system == "adaspec":
        setting = replace(setting, guesser=partial(AdaSpecGuesser, costs=step_costs(world), most=ADASPEC_MOST))
    if arm.system == "smurfs":
        setting = replace(setting, planner=lambda: BaselineController(ClimbingLength()), reshape=Vote(log.texts))
    simulated = run(log, arm.variant, setting, arrivals_s, lambda: [])
    found = met(simulated)
    last_s = sum(record.max_tokens for record in simulated.ended) / found.tokens_per_s
    targets = [one.target for one in simulated.verifiers]
    seconds: Counter[int] = Counter()
    for target in targets:
        seconds.update(target.batch_s)
    return Figures(
        tuple(times(simulated)),
        found.tokens_per_s,
        found.tokens_per_round,
        found.drafted_per_round,
        1.0 - (found.tokens_per_round - 1.0) / found.drafted_per_round if found.drafted_per_round else 0.0,
        price_per_h(world, arm.drafters),
        peak_flops(world, arm.drafters),
        arm.chosen,
        sum((target.lengths for target in targets), Counter[int]()),
        sum((target.batches for target in targets), Counter[int]()),
        seconds,
        _busy(simulated, last_s),
        _exits(simulated),
    )


def tuned(world: WorldSpec, arm: Arm, log: Log, streams: int, seed: int, arrivals_s: list[float] | None = None) -> Arm:
    """Return the arm with the variant of the most tokens/s; `log`: other data than it is measured on."""
    if len(arm.variants) == 1:
        return arm
    tried = map(arm.only, arm.variants)
    return max(tried, key=lambda one: play(world, one, log, streams, seed, arrivals_s).tokens_per_s)


def alone(world: WorldSpec, log: Log, seed: int) -> RequestTimes:
    """Return what a request takes alone, with plain decoding: the mean over a recording of few."""
    requests = play(world, off(), log, 1, seed).requests
    return RequestTimes(*(statistics.fmean(column) for column in zip(*requests, strict=True)))


def setting_of(world: WorldSpec, drafters: tuple[str, ...], streams: int, seed: int) -> Setting:
    """Return the simulator's setting of a world in which these drafters are used."""
    target = world.target
    links = {}
    if target.link is not None:
        links = {name: _link(world.links[one.link]) for name, one in world.drafters.items() if one.link is not None}
        links[VERIFIERS] = _link(world.links[target.link])
    return Setting(
        streams=streams,
        verifiers=round(target.batches.value),
        hop_s=world.hop_s.value,
        seed=seed,
        shared=sharing(world),
        host_s=target.host_s.value,
        links=links,
        stages=round(target.stages.value),
        kv_tokens=kv_tokens(world, drafters),
        exits=exit_costs(world),
    )


def _play_pipeinfer(world: WorldSpec, arm: Arm, log: Log, streams: int, arrivals_s: list[float] | None) -> Figures:
    (drafter,) = arm.drafters
    served = PipeInfer(world, log, drafter, arm.variant.length or 1, streams, arrivals_s).run()
    passes = served.tokens - served.accepted  # each commits a token of its own
    return Figures(
        tuple(served.requests),
        served.tokens / served.last_s,
        served.tokens / passes,
        served.drafted / passes,
        1.0 - served.accepted / served.drafted if served.drafted else 0.0,
        price_per_h(world, arm.drafters),
        peak_flops(world, arm.drafters),
        arm.chosen,
        served.lengths,
        served.batches,
        served.batch_s,
        {"target": sum(served.batch_s.values()) / served.last_s},
    )


def _busy(simulated: World, last_s: float) -> dict[str, float]:
    """Return the part of the time in which the target, each drafter node and the fuser work."""
    target_s = statistics.fmean(one.target.busy_s for one in simulated.verifiers)
    busy = {box: simulated.network.machines[box].busy_s / last_s for box in (*simulated.nodes, FUSE)}
    return {"target": target_s / last_s} | {name: part for name, part in busy.items() if part > 0.0}


def _exits(simulated: World) -> ExitCounts | None:
    if simulated.setting.exits is None or simulated.settings.plan.pruning == "off":
        return None
    own = [one.early_exit for one in simulated.verifiers]
    return ExitCounts(*(sum(getattr(one, name) for one in own) for name in ("looked_at", "dropped", "cut")))


def _link(spec: LinkSpec) -> Link:
    return Link(spec.latency_s.value, spec.bits_per_s.value)

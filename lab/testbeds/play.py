"""Run an arm in a world: a recording, made or real, goes through the simulator, and figures come out."""

from collections import deque
from collections.abc import Sequence as Listed
from dataclasses import replace
from functools import partial

from app.speculation.baselines import BaselineController
from lab.simulate.events import Link
from lab.simulate.log import Log
from lab.simulate.machines import build
from lab.simulate.world import VERIFIERS, Setting
from lab.testbeds.adaspec import AdaSpecGuesser
from lab.testbeds.arms import ADASPEC_MOST, Arm
from lab.testbeds.figures import Figures, Served, served_of
from lab.testbeds.pipeinfer import PipeInfer
from lab.testbeds.roofline import exit_costs, kv_tokens, peak_flops, price_per_h, sharing, step_costs
from lab.testbeds.smurfs import ClimbingLength, Vote
from lab.testbeds.worlds import LinkSpec, WorldSpec

REPEATS = 2  # requests of each stream in a closed loop, at least


def play(
    world: WorldSpec, arm: Arm, log: Log, streams: int, seed: int, arrivals_s: Listed[float] | None = None
) -> Figures:
    """Run the arm's first variant: every text in closed loops of so many streams, or one at each of these seconds."""
    if arm.system == "pipeinfer":
        (drafter,) = arm.drafters
        served = PipeInfer(world, log, drafter, arm.variant.length or 1, streams, arrivals_s).run()
    else:
        served = _simulated(world, arm, log, streams, seed, arrivals_s)
    return Figures.of(served, price_per_h(world, arm.drafters), peak_flops(world, arm.drafters), arm.chosen)


def tuned(
    world: WorldSpec, arm: Arm, log: Log, streams: int, seed: int, arrivals_s: Listed[float] | None = None
) -> Arm:
    """Return the arm with the variant of the most tokens/s; `log`: other data than it is measured on."""
    if len(arm.variants) == 1:
        return arm
    tried = map(arm.only, arm.variants)
    return max(tried, key=lambda one: play(world, one, log, streams, seed, arrivals_s).tokens_per_s)


def setting_of(world: WorldSpec, drafters: tuple[str, ...], streams: int, seed: int) -> Setting:
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


def _simulated(
    world: WorldSpec, arm: Arm, log: Log, streams: int, seed: int, arrivals_s: Listed[float] | None
) -> Served:
    setting = setting_of(world, arm.drafters, streams, seed)
    if arm.system == "adaspec":
        setting = replace(setting, guesser=partial(AdaSpecGuesser, costs=step_costs(world), most=ADASPEC_MOST))
    if arm.system == "smurfs":
        setting = replace(setting, planner=lambda: BaselineController(ClimbingLength()), reshape=Vote(log.texts))
    simulated = build(log, arm.variant, setting, lambda: [])
    texts = [*simulated.waiting]
    count = max(len(texts), REPEATS * streams) if arrivals_s is None else len(arrivals_s)
    simulated.waiting = deque(f"{texts[i % len(texts)]}.{i}" for i in range(count))
    simulated.run(arrivals_s)
    return served_of(simulated.ends)


def _link(spec: LinkSpec) -> Link:
    return Link(spec.latency_s.value, spec.bits_per_s.value)

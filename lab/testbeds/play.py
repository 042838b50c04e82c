"""Run an arm in a world: a recording, made or real, goes through the simulator, and figures come out."""

from collections import deque
from collections.abc import Sequence as Listed
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

from app.engine.kv.sizing import PAGE_TOKENS
from app.speculation.baselines import BaselineController
from app.state import BatchEntry, Guess
from lab.simulate.adaspec import adaspec_guessers
from lab.simulate.events import Link
from lab.simulate.log import DEPTH, Log
from lab.simulate.machines import build
from lab.simulate.models import LogGuesser
from lab.simulate.world import VERIFIERS, Setting, World
from lab.testbeds.arms import Arm
from lab.testbeds.figures import Figures, served_of, verified
from lab.testbeds.pipeinfer import PipeInfer
from lab.testbeds.roofline import exit_costs, kv_tokens, peak_flops, price_per_h, sharing, step_costs
from lab.testbeds.smurfs import ClimbingLength, Vote
from lab.testbeds.worlds import LinkSpec, WorldSpec

WAVES, FEWEST = 4, 10  # requests that count in a closed loop: so many of each stream, and at least so many


class Load(NamedTuple):
    """Closed loops of so many streams, or requests at these seconds."""

    name: str
    streams: int
    requests: int
    arrivals_s: Listed[float] | None = None

    @property
    def wave(self) -> int:
        """Return the requests at the beginning and at the end that do not count."""
        return self.streams if self.arrivals_s is None else 0

    def speed(self, own: Figures) -> float:
        """Return what arms are compared by: tokens/s, or under arrivals, which fix those, the inverse of request_s."""
        return own.tokens_per_s if self.arrivals_s is None else 1.0 / own.request_s


def loop(streams: int, waves: int = WAVES, fewest: int = FEWEST) -> Load:
    """Return closed loops with a wave before and one behind the requests that count."""
    return Load(f"{streams} at once", streams, 2 * streams + max(waves * streams, fewest))


class ChainGuesser(LogGuesser):
    """A drafter's model that gives no second-best guesses."""

    def guess(self, works: list[BatchEntry], depth: int, floor: float) -> list[list[Guess]]:
        found = super().guess(works, depth, floor)
        return [[one._replace(second=one.token, second_confidence=0.0) for one in chain] for chain in found]


def play(world: WorldSpec, arm: Arm, log: Log, load: Load, seed: int) -> Figures:
    """Run the arm as it is.

    Raises RuntimeError where one of a stated length verified less of it than there was room for.
    """
    price, peak = price_per_h(world, arm.drafters), peak_flops(world, arm.drafters)
    if arm.system == "pipeinfer":
        (drafter,) = arm.drafters
        served = PipeInfer(world, log, drafter, arm.variant.length or 1, load.streams, load.requests, load.arrivals_s)
        return Figures.of(served.run(), price, peak, arm.chosen, load.wave)
    simulated = _simulated(world, arm, log, load, seed)
    own = Figures.of(served_of(simulated.ends), price, peak, arm.chosen, load.wave)
    return replace(own, verified=_verified(arm, simulated))


def tuned(world: WorldSpec, arm: Arm, log: Log, load: Load, seed: int) -> Arm:
    """Return the arm with the fastest choice on each axis in turn; `log`: other data than it is measured on."""
    speeds: dict[str, float] = {}

    def speed(one: Arm) -> float:
        if one.chosen not in speeds:
            speeds[one.chosen] = load.speed(play(world, one, log, load, seed))
        return speeds[one.chosen]

    best = [axis[0] for axis in arm.axes]
    for place, axis in enumerate(arm.axes):
        tried = [[*best[:place], choice, *best[place + 1 :]] for choice in axis]
        best = max(tried, key=lambda choices: speed(arm.at(choices))) if len(tried) > 1 else tried[0]
    return arm.at(best)


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


def _simulated(world: WorldSpec, arm: Arm, log: Log, load: Load, seed: int) -> World:
    setting = setting_of(world, arm.drafters, load.streams, seed)
    match arm.system:
        case "adaspec":
            setting = replace(setting, guesser=adaspec_guessers(step_costs(world)))
        case "smurfs":
            setting = replace(setting, planner=lambda: BaselineController(ClimbingLength()), reshape=Vote(log.texts))
        case "chains":
            setting = replace(setting, guesser=ChainGuesser)
    if arm.is_coupled:
        setting = replace(setting, is_local=True, verifiers=1)
        device, host_s = world.target.device, world.target.host_s.value  # one process has no lane beside the target
        launch_s = world.devices[device].launch_s.value + host_s
        costs = step_costs(world.with_values({f"devices.{device}.launch_s": launch_s}))
        log = log.model_copy(update={"costs": costs.dumps()})
    most = max(1, setting.kv_tokens // setting.verifiers // _whole_tokens(log))  # none is ever put aside for another
    rows = world.target.batch_tokens
    policy = {} if rows is None else {"max_batch_tokens": round(rows.value)}
    changes = {**arm.variant.changes, "max_sequences": most}
    variant = replace(arm.variant, changes=changes, policy={**policy, **arm.variant.policy})
    simulated = build(log, variant, setting, lambda: [])
    texts = [*simulated.waiting]
    simulated.waiting = deque(f"{texts[i % len(texts)]}.{i}" for i in range(load.requests))
    simulated.run(load.arrivals_s)
    return simulated


def _whole_tokens(log: Log) -> int:
    """Return the tokens of cache that the longest text and its draft take, in whole pages."""
    longest = max(len(text.prompt_ids) + len(text.tokens) for text in log.texts) + DEPTH
    return -(-longest // PAGE_TOKENS) * PAGE_TOKENS


def _verified(arm: Arm, simulated: World) -> float:
    """Return the draft tokens of rounds with room for the plan's stated length; 0 where it states none."""
    own = simulated.settings.plan
    if arm.system not in ("paceline", "chains") or ":" not in own.lengths or not own.drafts:
        return 0.0
    rounds = [
        tokens
        for record in simulated.ended
        for tokens in verified(simulated.store.events(record.id, 0), record.max_tokens, own.stated_tokens)
    ]
    mean = fmean(rounds) if rounds else 0.0
    if own.drafts_whole and min(rounds, default=0) < own.stated_tokens:
        raise RuntimeError(f"{arm.name} states {own.lengths} and verified {mean:.2f} tokens a round")
    return mean


def _link(spec: LinkSpec) -> Link:
    return Link(spec.latency_s.value, spec.bits_per_s.value)

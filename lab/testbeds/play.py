"""Run an arm in a world: a setting of the simulator and a recording, made or real, go in, figures come out."""

import statistics
from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence as Listed
from dataclasses import dataclass, field, replace
from functools import partial

from app.messages import FUSE
from app.speculation.baselines import BaselineController
from lab.simulate.events import Link
from lab.simulate.load import RequestTimes, met, times
from lab.simulate.log import Log
from lab.simulate.shared import run
from lab.simulate.world import VERIFIERS, Setting, World
from lab.testbeds.adaspec import AdaSpecGuesser
from lab.testbeds.arms import ADASPEC_MOST, Arm, Comparison
from lab.testbeds.details import Details, ExitCounts
from lab.testbeds.pipeinfer import PipeInfer
from lab.testbeds.roofline import exit_costs, kv_tokens, peak_flops, price_per_h, sharing, step_costs
from lab.testbeds.smurfs import ClimbingLength, Vote
from lab.testbeds.texts import drafter_log
from lab.testbeds.worlds import DrafterSpec, LinkSpec, WorldSpec


@dataclass(frozen=True, slots=True)
class Figures:
    """Hold the figures of one arm under one load; latencies are means over requests but where a percentile is named."""

    tokens_per_s: float
    request_s: float
    request_p95_s: float
    first_token_s: float
    token_s: float  # after the first
    tokens_a_round: float
    drafted: float  # a round
    rejected: float  # part of the drafted
    verifier_busy: float
    price_per_h: float
    peak_flops: float
    lengths: str  # chosen on other data; empty: the plan decides
    drafters: str = ""  # that can be asked
    way: str = ""  # settings chosen on other data; empty: there was no choice
    details: Details = field(default_factory=Details)

    @property
    def cost(self) -> float:
        """Return the price of a million tokens."""
        return self.price_per_h / (3600.0 * self.tokens_per_s) * 1e6


def setting_of(world: WorldSpec, drafters: tuple[str, ...], streams: int, seed: int) -> Setting:
    """Return the simulator's setting of a world in which these drafters are asked."""
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


def play(
    world: WorldSpec, arm: Arm, log: Log, streams: int, seed: int, arrivals_s: list[float] | None = None
) -> Figures:
    """Run every text of the recording in closed loops of so many streams, or one text at each of these seconds."""
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
    accepted = found.tokens_per_round - 1.0
    return Figures(
        found.tokens_per_s,
        found.total_s,
        found.total_p95_s,
        found.ttft_s,
        found.tpot_s,
        found.tokens_per_round,
        found.drafted_per_round,
        1.0 - accepted / found.drafted_per_round if found.drafted_per_round else 0.0,
        statistics.fmean(one.target.busy_s for one in simulated.verifiers) / last_s,
        price_per_h(world, arm.drafters),
        peak_flops(world, arm.drafters),
        str(arm.variant.changes.get("lengths", "")),
        ", ".join(arm.drafters),
        ", ".join(f"{name} {value}" for name, value in arm.way.items()),
        _details(simulated, last_s),
    )


def _details(simulated: World, last_s: float) -> Details:
    """Return a simulation's figures of requests and steps."""
    targets = [one.target for one in simulated.verifiers]
    boxes = {**simulated.nodes, FUSE: ()}
    busy = {box: simulated.network.machines[box].busy_s / last_s for box in boxes}
    target_s = statistics.fmean(target.busy_s for target in targets)
    seconds: Counter[int] = Counter()
    for target in targets:
        seconds.update(target.batch_s)
    exits = None
    if simulated.setting.exits is not None and simulated.settings.plan.pruning != "off":
        own = [one.early_exit for one in simulated.verifiers]
        exits = ExitCounts(*(sum(getattr(one, name) for one in own) for name in ("looked_at", "dropped", "cut")))
    return Details(
        tuple(times(simulated)),
        sum((target.lengths for target in targets), Counter[int]()),
        sum((target.batches for target in targets), Counter[int]()),
        seconds,
        {"target": target_s / last_s} | {name: part for name, part in busy.items() if part > 0.0},
        exits,
    )


def alone(world: WorldSpec, off: Arm, log: Log, seed: int) -> RequestTimes:
    """Return what a request takes alone, with plain decoding: the mean over a recording of few."""
    requests = play(world, off, log, 1, seed).details.requests
    return RequestTimes(*(statistics.fmean(column) for column in zip(*requests, strict=True)))


def _play_pipeinfer(world: WorldSpec, arm: Arm, log: Log, streams: int, arrivals_s: list[float] | None) -> Figures:
    lengths = str(arm.variant.changes["lengths"])
    size = int(lengths.partition(":")[2])
    (drafter,) = arm.drafters
    served = PipeInfer(world, log, drafter, size, streams, arrivals_s).run()
    requests_s = served.requests_s
    total_s, first_s = statistics.fmean(requests_s), statistics.fmean(served.firsts_s)
    passes = served.tokens - served.accepted  # each says a token of its own
    return Figures(
        served.tokens / served.last_s,
        total_s,
        statistics.quantiles(requests_s, n=20)[-1] if len(requests_s) > 1 else total_s,
        first_s,
        (total_s - first_s) / max(1.0, served.tokens / len(requests_s) - 1.0),
        served.tokens / passes,
        served.drafted / passes,
        1.0 - served.accepted / served.drafted if served.drafted else 0.0,
        served.busy_s / served.last_s,
        price_per_h(world, arm.drafters),
        peak_flops(world, arm.drafters),
        lengths,
        drafter,
        details=Details(
            tuple(map(RequestTimes, requests_s, served.firsts_s, served.tokens_s)),
            served.lengths,
            served.batches,
            served.batch_s,
            {"target": served.busy_s / served.last_s},
        ),
    )


def with_length(arm: Arm, lengths: str) -> Arm:
    """Return the arm with one of its lengths."""
    return _changed(arm, {"lengths": lengths})


def with_drafter(arm: Arm, name: str) -> Arm:
    """Return the arm with one of its drafters."""
    return replace(arm, variant=replace(arm.variant, drafters=(name,)), one_of=())


def with_way(arm: Arm, changes: Mapping[str, object]) -> Arm:
    """Return the arm with one of its ways to work."""
    return replace(_changed(arm, changes), ways=(), way=changes)


def tuned(world: WorldSpec, arm: Arm, log: Log, streams: int, seed: int, arrivals_s: list[float] | None = None) -> Arm:
    """Return the arm with the drafter, way and lengths of those it has to choose from that give the most tokens/s.

    `log`: a recording of other data than it is measured on.
    """
    tried = [with_drafter(arm, name) for name in arm.one_of] or [arm]
    tried = [one for own in tried for one in ([with_way(own, way) for way in own.ways] or [own])]
    tried = [one for own in tried for one in ([with_length(own, lengths) for lengths in own.lengths] or [own])]
    if len(tried) == 1:
        return tried[0]
    return max(tried, key=lambda one: play(world, one, log, streams, seed, arrivals_s).tokens_per_s)


def compared(one: Comparison, figures: Mapping[str, Figures]) -> float | None:
    """Return the arm's figure over that of the best of the others; None where an arm was not run."""
    names = [name for name in one.over if name in figures]
    if not names or one.arm not in figures:
        return None

    def value(name: str) -> float:
        own = figures[name]
        return float(getattr(own, one.figure)) / (getattr(own, one.cost) if one.cost else 1.0)

    best = (min if one.figure == "request_s" else max)(map(value, names))
    return value(one.arm) / best


def over_recording(world: WorldSpec, log: Log, mixture: str) -> tuple[WorldSpec, Log]:
    """Return the world with a recording's drafters in the places of its own, and the recording at the world's costs.

    `mixture`: the drafter that was trained on the mixture. Raises ValueError where the world has too few places.
    """
    names: Listed[str] = [name for name in log.drafters if name != mixture]
    experts = [one for one in world.drafters.values() if one.domain]
    mixed = [one for one in world.drafters.values() if not one.domain]
    if not experts:
        names, experts = names[:1] or [mixture], mixed
    if len(names) > len(experts):
        raise ValueError(f"the recording has {len(names)} experts, the world places for {len(experts)}")
    placed: dict[str, DrafterSpec] = dict(zip(names, experts, strict=False))
    if mixture in log.drafters and mixture not in placed:
        placed[mixture] = mixed[0]
    own = world.model_copy(update={"drafters": placed})
    drafters = {name: drafter_log(own, name, log.drafters[name].guesses) for name in placed}
    return own, log.model_copy(update={"costs": step_costs(own).dumps(), "drafters": drafters})


def _changed(arm: Arm, changes: Mapping[str, object]) -> Arm:
    return replace(arm, variant=replace(arm.variant, changes={**arm.variant.changes, **changes}))


def _link(spec: LinkSpec) -> Link:
    return Link(spec.latency_s.value, spec.bits_per_s.value)

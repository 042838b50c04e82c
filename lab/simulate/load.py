"""Run requests through a simulation, and say what their clients meet."""

from collections import deque
from collections.abc import Sequence as Listed
from typing import NamedTuple

from lab.simulate.log import Log
from lab.simulate.machines import build
from lab.simulate.world import MakeModelFree, Setting, World
from lab.ways import Variant

REPEATS = 2  # requests of each stream in a closed loop, at least


class Met(NamedTuple):
    """Hold what all requests of one load met together."""

    tokens_per_s: float  # until the last answer
    tokens_per_round: float
    drafted_per_round: float


class RequestTimes(NamedTuple):
    """Hold what one request met, in seconds."""

    total_s: float
    first_s: float  # until its first token
    token_s: float  # after that


def run(
    log: Log, variant: Variant, setting: Setting, arrivals_s: Listed[float] | None, model_free: MakeModelFree
) -> World:
    """Run texts, all in turn: one at each of these seconds, or `streams` at a time."""
    world = build(log, variant, setting, model_free)
    texts = [*world.waiting]
    count = max(len(texts), REPEATS * setting.streams) if arrivals_s is None else len(arrivals_s)
    world.waiting = deque(f"{texts[i % len(texts)]}.{i}" for i in range(count))
    world.run(arrivals_s)
    return world


def times(world: World) -> list[RequestTimes]:
    """Return what each request of a simulation that has ended met."""
    found = []
    for record in world.ended:
        end = world.store.snapshot(record.id)
        first_s, last_s = end.stats.first_token_s or 0.0, end.stats.last_token_s or 0.0
        token_s = (last_s - first_s) / max(1, len(end.tokens) - 1)
        found.append(RequestTimes(last_s - end.record.created_s, first_s - end.record.created_s, token_s))
    return found


def met(world: World) -> Met:
    """Return what the requests of a simulation that has ended met together."""
    ends = [world.store.snapshot(record.id) for record in world.ended]
    rounds = sum(end.stats.rounds for end in ends)
    tokens = sum(len(end.tokens) for end in ends)
    last_s = max(end.stats.last_token_s or 0.0 for end in ends)
    return Met(tokens / last_s, tokens / rounds, sum(end.stats.drafted for end in ends) / rounds)

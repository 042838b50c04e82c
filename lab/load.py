"""Say which requests an experiment makes, and when: all ways get the same ones, block after block."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from app.store.protocol import Snapshot
from bench.load.arrivals import steps
from bench.prompts import Prompts

Request = tuple[str, str]  # its domain and prompt


@dataclass(frozen=True, slots=True)
class Block:
    """Requests that a way runs before the next way's turn: at `arrivals_s`, or `streams` at a time."""

    requests: tuple[Request, ...]
    streams: int
    arrivals_s: tuple[float, ...] | None = None

    def may_start(self, number: int, running: int, elapsed_s: float) -> bool:
        """Tell whether the request of this number is there, and may start now."""
        if number == len(self.requests):
            return False
        return running < self.streams if self.arrivals_s is None else elapsed_s >= self.arrivals_s[number]


class Runner(Protocol):
    """A way of drafting in its place: in this process, simulated or deployed."""

    def run(self, block: Block) -> list[Snapshot]:
        """Run a block; return the ended requests in order."""
        ...

    def report(self) -> dict[str, Any]:
        """Return what is known of all blocks beside the requests; `model_rounds` among it."""
        ...


@dataclass(frozen=True, slots=True)
class Load:
    """What all ways get: prompts of each domain, uncounted ones before, and the turns of each way.

    With `rates` a block lasts `seconds`, its requests come at each of the rates in turn, and the prompts come round.
    """

    prompts: int
    warm_up: int
    blocks: int
    streams: int
    seed: int = 0
    rates: tuple[float, ...] = ()
    seconds: float = 0.0

    def of(self, prompts: Prompts) -> list[Block]:
        """Return the warming-up block and the counted ones. Raises ValueError where a domain has too few prompts."""
        if (fewest := min(map(len, prompts.values()))) < self.prompts + self.warm_up:
            raise ValueError(f"{self.prompts} prompts of a domain and {self.warm_up} before: one has {fewest}")
        counted = _of(prompts, range(self.prompts))
        random.Random(self.seed).shuffle(counted)
        first = Block(tuple(_of(prompts, range(self.prompts, self.prompts + self.warm_up))), self.streams)
        if self.rates:
            return [first, *self._at_rates(counted)]
        size = -(-len(counted) // self.blocks)
        return [first, *(Block(tuple(counted[i : i + size]), self.streams) for i in range(0, len(counted), size))]

    def _at_rates(self, counted: list[Request]) -> Iterator[Block]:
        begin = 0
        for number in range(self.blocks):
            arrivals = steps([*self.rates], self.seconds, 1, self.seed + number * len(self.rates))
            requests = tuple(counted[(begin + i) % len(counted)] for i in range(len(arrivals)))
            yield Block(requests, self.streams, tuple(arrival.at_s for arrival in arrivals))
            begin += len(arrivals)


def _of(prompts: Prompts, numbers: range) -> list[Request]:
    """Return these prompts of each domain, the domains in turn."""
    return [(domain, own[i]) for i in numbers for domain, own in prompts.items()]

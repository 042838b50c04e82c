"""Hold the figures of one arm under one load."""

import statistics
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Listed
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from app.messages import Event
from app.store.protocol import Snapshot

PERCENTILES = (50, 95, 99)


class RequestTimes(NamedTuple):
    """Hold the seconds of a request: in all, until its first token, and of each token after that."""

    total_s: float
    first_s: float
    token_s: float


class Ended(NamedTuple):
    at_s: float
    tokens: int
    times: RequestTimes


@dataclass(slots=True)
class Served:
    """Count the requests and tokens of a simulation, whose clock begins at 0."""

    ended: list[Ended] = field(default_factory=list)
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0

    def add(self, ended_s: float, times: RequestTimes, tokens: int) -> None:
        self.ended.append(Ended(ended_s, tokens, times))
        self.tokens += tokens


@dataclass(frozen=True, slots=True)
class Figures:
    """Hold the figures of one arm under one load; latencies are means over requests."""

    requests: tuple[RequestTimes, ...]  # those that count
    tokens_per_s: float
    tokens_a_round: float
    drafted: float  # tokens a round
    rejected: float  # part of the drafted
    price_per_h: float
    peak_flops: float
    chosen: str = ""  # settings that were fastest on other data; empty: there was no choice
    verified: float = 0.0  # draft tokens a round with room for the arm's stated length; 0: it states none

    @classmethod
    def of(cls, served: Served, price_per_h: float, peak_flops: float, chosen: str, wave: int = 0) -> "Figures":
        """Return the figures of all requests but the first and the last `wave` of them to end.

        The tokens/s of closed loops of so many streams are by Little's law: tokens under way over a request's seconds.
        """
        ended = sorted(served.ended)
        counted = ended[wave : len(ended) - wave]
        tokens, in_s = sum(one.tokens for one in counted), counted[-1].at_s
        if wave:
            in_s = sum(one.times.total_s for one in counted) / wave
        rounds = served.tokens - served.accepted  # each commits a token of the target's own
        return cls(
            tuple(one.times for one in counted),
            tokens / in_s,
            served.tokens / rounds,
            served.drafted / rounds,
            1.0 - served.accepted / served.drafted if served.drafted else 0.0,
            price_per_h,
            peak_flops,
            chosen,
        )

    @property
    def request_s(self) -> float:
        return statistics.fmean(one.total_s for one in self.requests)

    @property
    def token_s(self) -> float:
        return statistics.fmean(one.token_s for one in self.requests)

    @property
    def cost(self) -> float:
        """Return the price of a million tokens."""
        return self.price_per_h / (3600.0 * self.tokens_per_s) * 1e6

    def record(self) -> dict[str, Any]:
        names = ("tokens_per_s", "request_s", "token_s", "tokens_a_round", "drafted", "verified", "rejected", "cost")
        times = zip(("request_s", "first_token_s", "token_s"), zip(*self.requests, strict=True), strict=True)
        percentiles = {name: np.percentile(column, PERCENTILES).round(4).tolist() for name, column in times}
        found: dict[str, Any] = {name: round(getattr(self, name), 5) for name in (*names, "peak_flops")}
        return {**found, "chosen": self.chosen, "percentiles": percentiles}


def served_of(ends: Iterable[Snapshot]) -> Served:
    found = Served()
    for end in ends:
        began_s, first_s, last_s = end.record.created_s, end.stats.first_token_s or 0.0, end.stats.last_token_s or 0.0
        token_s = (last_s - first_s) / max(1, len(end.tokens) - 1)
        found.add(last_s, RequestTimes(last_s - began_s, first_s - began_s, token_s), len(end.tokens))
        found.drafted += end.stats.drafted
        found.accepted += len(end.tokens) - end.stats.rounds
    return found


def verified(events: Listed[Event], max_tokens: int, length: int) -> Iterator[int]:
    """Yield the draft tokens of a request's rounds but its prompt's and those whose end leaves no room for `length`."""
    for before, event in pairwise(events):
        if event.offset + length < max_tokens:
            yield event.stats.drafted - before.stats.drafted

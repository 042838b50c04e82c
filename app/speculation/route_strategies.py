"""Choose the model drafters of one round: the strategies that settings select, over the pure rules of `policies`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from app.speculation.route_scores import RequestScores, harmonic
from app.speculation.routing_policies import MIN_GAIN, Option, cosine, guesses, is_short, learned
from app.state import Tree

Agreement = Callable[[Sequence[int], Sequence[int]], float]  # (drafted, committed) of equal length -> 0 ... 1


@dataclass(frozen=True, slots=True)
class RoundLimits:
    """Bound a round: draft tokens and model drafters at most, and the tokens that one more drafter must bring."""

    depth: int
    most: int
    least_gain: float = MIN_GAIN


@dataclass(frozen=True, slots=True)
class RoundOptions:
    """Model drafters to choose from for one round of a sequence."""

    names: Sequence[str]  # in the pool's order
    options: Sequence[Option]  # another one first for each request: the order breaks ties
    accepted_length: float | None  # of the sequence's recent rounds
    limits: RoundLimits


class RoutingStrategy(Protocol):
    """Choose among several model drafters; stateless, since a request's scores hold what is learnt."""

    def choose(self, found: RoundOptions) -> list[str]:
        """Return the names of the chosen drafters."""
        ...

    def rate(
        self, scores: RequestScores, tree: Tree, committed: Sequence[int], confidence: Mapping[str, float]
    ) -> None:
        """Score a verified round beyond what is right and wrong. `confidence`: each drafter's mean, in its draft."""
        ...


class LearnedRouting:
    """Ask the drafters of the highest expected gain, by what they got right on this request and on those before."""

    def choose(self, found: RoundOptions) -> list[str]:
        """Choose by the expected gain of each option (`policies.learned`)."""
        options, recent, limits = found.options, found.accepted_length, found.limits
        if recent is None:  # a new request: expect what those before had
            recent = max((1.0 + o.tokens(limits.depth) for o in options if o.is_expected), default=None)
        return learned(options, limits.depth, limits.most, is_exploring=is_short(recent), least_gain=limits.least_gain)

    def rate(
        self, scores: RequestScores, tree: Tree, committed: Sequence[int], confidence: Mapping[str, float]
    ) -> None:
        """Score nothing more."""


class CosineRouting:
    """Choose as CoSine does (arXiv:2503.10325), by a matrix of scores from confidence and agreement."""

    def __init__(self, agreement: Agreement) -> None:
        """Rate by `agreement` of drafted and committed tokens, 0 ... 1."""
        self._agreement = agreement

    def choose(self, found: RoundOptions) -> list[str]:
        """Choose by score and by how often each was asked (`policies.cosine`)."""
        return cosine(found.options, found.limits.most, is_exploring=is_short(found.accepted_length))

    def rate(
        self, scores: RequestScores, tree: Tree, committed: Sequence[int], confidence: Mapping[str, float]
    ) -> None:
        """Update the matrix: a drafter's confidence against what was committed where it drafted."""
        for drafter, own in confidence.items():
            own_tokens = guesses(tree, drafter, len(committed))
            agreement = 0.0
            if own_tokens:
                agreement = self._agreement([*own_tokens.values()], [committed[place] for place in own_tokens])
            scores.match(drafter, harmonic(own, agreement))


class FixedRouting:
    """Ask the first `count` of the pool's drafters, or all; a baseline."""

    def __init__(self, count: int | None = None) -> None:
        """Ask `count` drafters; None for all."""
        self._count = count

    def choose(self, found: RoundOptions) -> list[str]:
        """Choose the first ones in the pool's order."""
        return list(found.names[: self._count])

    def rate(
        self, scores: RequestScores, tree: Tree, committed: Sequence[int], confidence: Mapping[str, float]
    ) -> None:
        """Score nothing more."""

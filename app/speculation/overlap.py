"""Decide which work goes on while a verdict is pending (design D8).

Drafters run ahead as if the tree were right (PEARL), or in chunks: the first is verified while the rest is drafted
(FASER's frontiers). In halves, one half of the sequences is verified while the other half drafts.
"""

from collections.abc import Callable
from collections.abc import Sequence as Listed
from dataclasses import dataclass
from math import prod
from typing import Protocol

from app.engine.step_costs import StepCosts

GAIN = 1.05  # times as fast as the whole two halves must be
DraftingTime = Callable[[int], float]  # draft tokens -> the seconds of drafting them
DraftingOf = Callable[[int], float]  # sequences -> the seconds of drafting for them


@dataclass(frozen=True, slots=True)
class Round:
    survivals: Listed[Listed[float]]  # by sequence, by depth, one token beyond its draft included, which may be none
    costs: StepCosts
    drafting_s: DraftingTime

    @property
    def deepest(self) -> int:
        return max((len(own) - 1 for own in self.survivals), default=0)

    def pace(self, size: int) -> float:
        """Return the tokens/s of drafting, then a step, with at most `size` of each draft."""
        return self._tokens(size) / (self._verify_s(size) + self.drafting_s(size))

    def pace_ahead(self, size: int, beside_s: float = 0.0) -> float:
        """Return the tokens/s where drafters run ahead, `size` tokens of each draft at a time.

        Of b sequences a step takes T = T(b (1 + size)) and commits b + the sum of their survivals. With chance p all
        are right, the target's token included, and the next drafts, D', were made meanwhile; else drafters end half a
        guess on average, and draft from the target's tokens, D. The round takes T + p max(0, D' - T) + (1 - p) (D +
        (D' - D) / 2), and `beside_s`. Papers 2.3 name the trade; the rule is ours.
        """
        verify_s, draft_s, ahead_s = self._verify_s(size), self.drafting_s(size), self.drafting_s(size + 1)
        kept = prod(own[min(size, len(own) - 1)] for own in self.survivals if len(own) > 1)
        waited_s = kept * max(0.0, ahead_s - verify_s) + (1.0 - kept) * (draft_s + (ahead_s - draft_s) / 2.0)
        return self._tokens(size) / (verify_s + waited_s + beside_s)

    @property
    def best_ahead(self) -> int:
        return max(range(1, self.deepest + 1), key=self.pace_ahead)

    def _verify_s(self, size: int) -> float:
        rows = len(self.survivals) + sum(min(size, len(own) - 1) for own in self.survivals)
        return self.costs.seconds(rows)

    def _tokens(self, size: int) -> float:
        return len(self.survivals) + sum(sum(own[: min(size, len(own) - 1)]) for own in self.survivals)


class Overlap(Protocol):
    def runs_ahead(self, asked: Round, core_share: float) -> bool: ...

    def goes_together(self, costs: StepCosts, sequences: int, draft_s: DraftingOf) -> bool:
        """Tell whether all go in one batch; else one half drafts, for `draft_s(half)`, while the other half is
        verified.
        """
        ...

    def chunk(self, asked: Round, core_share: float) -> int | None:
        """Return how many tokens of each draft to wait for while drafters run ahead; None: for all."""
        ...


class NoOverlap:
    def runs_ahead(self, asked: Round, core_share: float) -> bool:
        return False

    def goes_together(self, costs: StepCosts, sequences: int, draft_s: DraftingOf) -> bool:
        return True

    def chunk(self, asked: Round, core_share: float) -> int | None:
        return None


class AutoOverlap(NoOverlap):
    """Run ahead of the verdict, in chunks, where that pays and takes no core from the verifier."""

    def runs_ahead(self, asked: Round, core_share: float) -> bool:
        size = asked.deepest
        return core_share == 0.0 and asked.pace_ahead(size) >= asked.pace(size)

    def chunk(self, asked: Round, core_share: float) -> int | None:
        if core_share > 0.0:
            return None
        size = asked.best_ahead
        return size if asked.pace_ahead(size) >= asked.pace(asked.deepest) else None


class HalvesOverlap:
    """Verify one half of the sequences while the other half drafts (CoSine, papers 1.6)."""

    def __init__(self, within: Overlap, gain: float = GAIN) -> None:
        """Do so where halves are `gain` times as fast; in each half work as `within` says."""
        self._gain = gain
        self.runs_ahead = within.runs_ahead
        self.chunk = within.chunk

    def goes_together(self, costs: StepCosts, sequences: int, draft_s: DraftingOf) -> bool:
        """Compare T + D with 2 max(T', D') of one half each: drafters serve one half after the other."""
        half = (sequences + 1) // 2
        halves_s = 2.0 * max(costs.seconds(half), draft_s(half))
        return sequences < 2 or self._gain * halves_s > costs.seconds(sequences) + draft_s(sequences)

"""Decide which work goes on while a verdict is pending (design D8).

Drafters run ahead: they guess on as if the tree were right (PEARL), so that the next draft is there at once
where the verdict confirms it. With chunks they do so inside a draft (FASER's frontiers): its first chunk is
verified while the rest is drafted; at the first rejection what is behind it is dropped, and drafting goes on
from the target's own token. In halves, one half of the sequences is verified while the other half drafts.
FASER's controller (`app.speculation.joint`) is an `Overlap` of its own.
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
    """The drafts asked for in a round: what the overlap of their drafting and verifying is judged by."""

    survivals: Listed[Listed[float]]  # by sequence, by depth, one token beyond its draft included, which may be none
    costs: StepCosts
    drafting_s: DraftingTime

    @property
    def deepest(self) -> int:
        """Return the most draft tokens of a sequence."""
        return max((len(own) - 1 for own in self.survivals), default=0)

    def pace(self, size: int) -> float:
        """Return the tokens/s with no more than `size` of each draft and nothing ahead: drafting, then a step."""
        return self._tokens(size) / (self._verify_s(size) + self.drafting_s(size))

    def pace_ahead(self, size: int, beside_s: float = 0.0) -> float:
        """Return the tokens/s where drafters run ahead of each verdict, `size` tokens of each draft at a time.

        Of b sequences a step takes T = T(b (1 + size)) and brings b + the sum of their survivals. If all
        are right, the target's own token included, with chance p, the next drafts were made meanwhile, and what
        they and that token, D', take longer than T is waited for; else drafters end the guess that
        they are at, half of it on average, and draft from the target's own tokens, D: the round takes
        T + p max(0, D' - T) + (1 - p) (D + (D' - D) / 2), and `beside_s`. Papers 2.3 name the trade; the rule is ours.
        """
        verify_s, draft_s, ahead_s = self._verify_s(size), self.drafting_s(size), self.drafting_s(size + 1)
        kept = prod(own[min(size, len(own) - 1)] for own in self.survivals if len(own) > 1)
        waited_s = kept * max(0.0, ahead_s - verify_s) + (1.0 - kept) * (draft_s + (ahead_s - draft_s) / 2.0)
        return self._tokens(size) / (verify_s + waited_s + beside_s)

    @property
    def best_ahead(self) -> int:
        """Return the tokens of a chunk that commit most a second while drafters run ahead."""
        return max(range(1, self.deepest + 1), key=self.pace_ahead)

    def _verify_s(self, size: int) -> float:
        rows = len(self.survivals) + sum(min(size, len(own) - 1) for own in self.survivals)
        return self.costs.seconds(rows)

    def _tokens(self, size: int) -> float:
        return len(self.survivals) + sum(sum(own[: min(size, len(own) - 1)]) for own in self.survivals)


class Overlap(Protocol):
    """Decide what drafters and sequences do while the verifier works."""

    def runs_ahead(self, asked: Round, core_share: float) -> bool:
        """Tell whether drafters run ahead, taking `core_share` (0 ... 1) of the verifier's pace."""
        ...

    def goes_together(self, costs: StepCosts, sequences: int, draft_s: DraftingOf) -> bool:
        """Tell whether all sequences go in one batch.

        Else one half drafts, for `draft_s(half)`, while the other half is verified.
        """
        ...

    def chunk(self, asked: Round, core_share: float) -> int | None:
        """Return how many tokens of each draft to wait for while drafters run ahead; None: for all."""
        ...


class NoOverlap:
    """Draft, verify, draft: nothing goes on while a verdict is pending."""

    def runs_ahead(self, asked: Round, core_share: float) -> bool:
        """Return False."""
        return False

    def goes_together(self, costs: StepCosts, sequences: int, draft_s: DraftingOf) -> bool:
        """Return True."""
        return True

    def chunk(self, asked: Round, core_share: float) -> int | None:
        """Return None: wait for the whole draft."""
        return None


class AutoOverlap(NoOverlap):
    """Run ahead of the verdict, in chunks, where that pays and takes no core from the verifier."""

    def runs_ahead(self, asked: Round, core_share: float) -> bool:
        """Tell whether drafters take nothing from the verifier's cores, and drafts of this size gain by it."""
        size = asked.deepest
        return core_share == 0.0 and asked.pace_ahead(size) >= asked.pace(size)

    def chunk(self, asked: Round, core_share: float) -> int | None:
        """Return the chunk of the best pace if it takes no core and gains over drafting all, then verifying."""
        if core_share > 0.0:
            return None
        size = asked.best_ahead
        return size if asked.pace_ahead(size) >= asked.pace(asked.deepest) else None


class HalvesOverlap:
    """Verify one half of the sequences while the other half drafts (CoSine, papers 1.6)."""

    def __init__(self, within: Overlap, gain: float = GAIN) -> None:
        """Do so where two halves are `gain` times as fast as the whole; in each half work as `within` says."""
        self._gain = gain
        self.runs_ahead = within.runs_ahead
        self.chunk = within.chunk

    def goes_together(self, costs: StepCosts, sequences: int, draft_s: DraftingOf) -> bool:
        """Tell whether two halves would be slower than the whole.

        All together take T + D a turn, two halves 2 max(T', D') of one half each: drafters serve one half after
        the other, as the target does. So it pays where both take longer the more they hold: not where a
        step costs much the same for any batch, however slow drafters are.
        """
        half = (sequences + 1) // 2
        halves_s = 2.0 * max(costs.seconds(half), draft_s(half))
        return sequences < 2 or self._gain * halves_s > costs.seconds(sequences) + draft_s(sequences)

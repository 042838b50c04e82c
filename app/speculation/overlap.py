"""Decide which work goes on while a verdict is pending (design D8).

Drafters guess ahead of it (PEARL), or hand over a first chunk, which is verified while the rest is drafted (FASER's
frontiers). In halves, one half of the sequences is verified while the other half drafts.
"""

from collections.abc import Callable
from typing import Protocol

from app.engine.step_costs import StepCosts

GAIN = 1.05  # times as fast as the whole two halves must be
DraftingOf = Callable[[int], float]  # sequences -> the seconds of drafting for them


class Overlap(Protocol):
    @property
    def chunk(self) -> int | None:
        """Return how many tokens of each draft to wait for while drafters guess ahead; None: for all."""
        ...

    def runs_ahead(self, core_share: float) -> bool:
        """Tell whether drafters guess ahead; `core_share`: the part of the verifier's pace that takes."""
        ...

    def goes_together(self, costs: StepCosts, sequences: int, draft_s: DraftingOf) -> bool:
        """Tell whether all go in one batch; else one half drafts, for `draft_s(half)`, while the other half is
        verified.
        """
        ...


class NoOverlap:
    chunk = None

    def runs_ahead(self, core_share: float) -> bool:
        return False

    def goes_together(self, costs: StepCosts, sequences: int, draft_s: DraftingOf) -> bool:
        return True


class AheadOverlap(NoOverlap):
    """Guess ahead where that takes no core from the verifier; drafters know which guesses pay."""

    def runs_ahead(self, core_share: float) -> bool:
        return core_share == 0.0


class HalvesOverlap(NoOverlap):
    """Verify one half of the sequences while the other half drafts (CoSine, papers 1.6)."""

    def __init__(self, gain: float = GAIN) -> None:
        """Do so where halves are `gain` times as fast."""
        self._gain = gain

    def goes_together(self, costs: StepCosts, sequences: int, draft_s: DraftingOf) -> bool:
        """Compare T + D with 2 max(T', D') of one half each: drafters serve one half after the other."""
        half = (sequences + 1) // 2
        halves_s = 2.0 * max(costs.seconds(half), draft_s(half))
        return sequences < 2 or self._gain * halves_s > costs.seconds(sequences) + draft_s(sequences)

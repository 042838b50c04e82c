"""Decide which work goes on while a verdict is pending (design D8).

In rounds, drafters guess on as if the tree were right (PEARL); where the verdict confirms it, the
next draft is there at once. In frontiers, the same goes on inside a round (FASER): the first half
of the tokens that pay is verified while the second is drafted, which is dropped at the first
rejection. In groups, one half of the sequences is verified while the other half drafts. The default
is chosen by the costs; frontiers never were the best (docs/decisions/0015).
"""

from typing import Protocol

from app.estimates.step_costs import StepCosts


class Overlap(Protocol):
    """Decide what drafters and sequences do while the verifier works."""

    def runs_ahead(self, core_share: float) -> bool:
        """Tell whether drafters run ahead, taking `core_share` (0 ... 1) of the verifier's pace."""
        ...

    def goes_together(self, costs: StepCosts, sequences: int, draft_s: float) -> bool:
        """Tell whether all sequences go in one batch.

        Else one half drafts, for `draft_s`, while the other half is verified.
        """
        ...

    def frontier(self, depth: int) -> int:
        """Return how many of `depth` draft tokens to wait for."""
        ...


class NoOverlap:
    """Draft, verify, draft: nothing goes on while a verdict is pending."""

    def runs_ahead(self, core_share: float) -> bool:
        """Return False."""
        return False

    def goes_together(self, costs: StepCosts, sequences: int, draft_s: float) -> bool:
        """Return True."""
        return True

    def frontier(self, depth: int) -> int:
        """Return `depth`: wait for the whole draft."""
        return depth


class RoundsOverlap(NoOverlap):
    """Run ahead of every verdict."""

    def runs_ahead(self, core_share: float) -> bool:
        """Return True."""
        return True


class FrontiersOverlap(RoundsOverlap):
    """Run ahead of every verdict, and wait for the first half of each draft alone."""

    def frontier(self, depth: int) -> int:
        """Return half of `depth`, rounded up."""
        return (depth + 1) // 2


class GroupsOverlap(NoOverlap):
    """Verify one half of the sequences while the other half drafts, whatever it costs."""

    def goes_together(self, costs: StepCosts, sequences: int, draft_s: float) -> bool:
        """Tell whether there is only one sequence."""
        return sequences < 2


class AutoOverlap(NoOverlap):
    """Run ahead where it takes no core from the verifier; split the sequences where two halves are as fast."""

    def __init__(self, *, may_split: bool = True) -> None:
        """Split the sequences only if `may_split`."""
        self._may_split = may_split

    def runs_ahead(self, core_share: float) -> bool:
        """Tell whether drafters take nothing from the verifier's cores."""
        return core_share == 0.0

    def goes_together(self, costs: StepCosts, sequences: int, draft_s: float) -> bool:
        """Tell whether two halves would be slower than the whole (`splits`)."""
        return not (self._may_split and splits(costs, sequences, draft_s))


def splits(costs: StepCosts, sequences: int, draft_s: float) -> bool:
    """Tell whether it pays to verify one half of the sequences while the other half drafts.

    It does where two half batches take no longer than a whole one with its drafting: rarely where a
    step costs much the same for any batch.
    """
    half = (sequences + 1) // 2
    return sequences > 1 and 2.0 * costs.seconds(half) <= costs.seconds(sequences) + draft_s

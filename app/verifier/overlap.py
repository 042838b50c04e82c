"""Decide which work goes on while a verdict is pending (design D8).

In rounds, drafters guess on as if the tree were right (PEARL); where the verdict confirms it, the
next draft is there at once. In frontiers, the same goes on inside a draft (FASER): its first chunk
is verified while the rest is drafted, chunk by chunk; at the first rejection what is behind it is
dropped, and drafting goes on from the target's own token. In groups, one half of the sequences is
verified while the other half drafts. The default is chosen by the costs (docs/decisions/0015).
FASER's controller (`app.stages.length.joint_controller`) is an `Overlap` of its own.
"""

from collections.abc import Callable
from collections.abc import Sequence as Listed
from math import prod
from typing import Protocol

from app.estimates.step_costs import StepCosts

DraftingTime = Callable[[int], float]  # draft tokens -> the seconds of drafting them


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

    def chunk(self, survivals: Listed[Listed[float]], costs: StepCosts, drafting_s: DraftingTime) -> int | None:
        """Return how many tokens of each draft to wait for while drafters run ahead; None: for all.

        `survivals`: by sequence that drafts, by depth; `drafting_s`: of so many tokens.
        """
        ...


class NoOverlap:
    """Draft, verify, draft: nothing goes on while a verdict is pending."""

    def runs_ahead(self, core_share: float) -> bool:
        """Return False."""
        return False

    def goes_together(self, costs: StepCosts, sequences: int, draft_s: float) -> bool:
        """Return True."""
        return True

    def chunk(self, survivals: Listed[Listed[float]], costs: StepCosts, drafting_s: DraftingTime) -> int | None:
        """Return None: wait for the whole draft."""
        return None


class RoundsOverlap(NoOverlap):
    """Run ahead of every verdict."""

    def runs_ahead(self, core_share: float) -> bool:
        """Return True."""
        return True


class FrontiersOverlap(RoundsOverlap):
    """Run ahead of every verdict, and wait for a chunk of each draft alone, of the size that pays."""

    def __init__(self, tokens: int | None = None) -> None:
        """Wait for chunks of so many tokens; None: of the size that pays."""
        self._tokens = tokens

    def chunk(self, survivals: Listed[Listed[float]], costs: StepCosts, drafting_s: DraftingTime) -> int | None:
        """Return the fixed chunk, or that of the best pace (`best_chunk`)."""
        return self._tokens or best_chunk(survivals, costs, drafting_s)


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


def best_chunk(survivals: Listed[Listed[float]], costs: StepCosts, drafting_s: DraftingTime) -> int:
    """Return the draft tokens of a chunk that commit most a second, while drafters run ahead of each verdict.

    Of b sequences with chunks of c tokens, a step takes T = T(b (1 + c)) and brings b + the sum of their
    survivals. If all are right, with chance p, the next chunk was drafted meanwhile, and what
    drafting takes longer than T is waited for; else it is drafted from the target's own tokens, D(c):
    the round takes T + p max(0, D - T) + (1 - p) D. Papers 2.3 name the trade; the rule is ours.
    """
    deepest = max(map(len, survivals))

    def pace(size: int) -> float:
        rows = len(survivals) + sum(min(size, len(own)) for own in survivals)
        verify_s, draft_s = costs.seconds(rows), drafting_s(size)
        kept = prod(own[min(size, len(own)) - 1] for own in survivals)
        waited_s = kept * max(0.0, draft_s - verify_s) + (1.0 - kept) * draft_s
        return (len(survivals) + sum(sum(own[:size]) for own in survivals)) / (verify_s + waited_s)

    return max(range(1, deepest + 1), key=pace)


def splits(costs: StepCosts, sequences: int, draft_s: float) -> bool:
    """Tell whether it pays to verify one half of the sequences while the other half drafts.

    It does where two half batches take no longer than a whole one with its drafting: rarely where a
    step costs much the same for any batch.
    """
    half = (sequences + 1) // 2
    return sequences > 1 and 2.0 * costs.seconds(half) <= costs.seconds(sequences) + draft_s

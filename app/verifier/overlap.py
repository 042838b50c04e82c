"""Which work goes on while a verdict is pending: the three ways to overlap drafting and verifying (design D8).

`rounds`: drafters guess on as if the tree were right (PEARL); what the verdict confirms is the next answer at once.
`frontiers`: the same inside a round (FASER): the first half of the tokens that pay goes off to be verified, the second
is drafted meanwhile, and dropped at the first rejection. `groups`: one half of the sequences is verified while the
other half drafts. `auto` takes what the costs speak for; that was never frontiers (docs/decisions/0015).
"""

from typing import Literal

from app.estimates.step_costs import StepCosts

Overlap = Literal["auto", "none", "rounds", "frontiers", "groups"]


def runs_ahead(overlap: Overlap, share: float) -> bool:
    """May drafters guess on while the verifier works? `share`: of the verifier's pace that they would take."""
    return overlap in ("rounds", "frontiers") or (overlap == "auto" and share == 0.0)


def goes_together(overlap: Overlap, costs: StepCosts, sequences: int, draft_s: float) -> bool:
    """Do the sequences go in one batch? Else one half drafts, for `draft_s`, while the other half is verified."""
    if overlap == "auto":
        return not splits(costs, sequences, draft_s)
    return overlap != "groups" or sequences < 2


def frontier(overlap: Overlap, depth: int) -> int:
    """How many of `depth` draft tokens to wait for."""
    return (depth + 1) // 2 if overlap == "frontiers" else depth


def splits(costs: StepCosts, sequences: int, draft_s: float) -> bool:
    """Does it pay to verify one half of the sequences while the other half drafts? Only where two half batches
    take no longer than a whole one with its drafting: rarely where a step costs much the same for any batch."""
    half = (sequences + 1) // 2
    return sequences > 1 and 2.0 * costs.seconds(half) <= costs.seconds(sequences) + draft_s

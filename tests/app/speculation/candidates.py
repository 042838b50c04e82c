"""Make candidates whose drafts are right up to a stated depth, and drafters of a stated pace."""

import random

from app.messages import DraftReport
from app.speculation.acceptance import AcceptanceEstimate
from app.speculation.draft_costs import DraftCosts
from app.speculation.marginal import Candidate


def likely(accepted: int, limit: int = 8, context: int = 0) -> Candidate:
    """Make a candidate of whose drafts the first `accepted` tokens are right."""
    expectation = AcceptanceEstimate(AcceptanceEstimate())
    for _ in range(60):
        expectation.update(8, accepted)
    return Candidate(expectation, limit, context=context)


def chancy(chance: float, limit: int = 8) -> Candidate:
    """Make a candidate of whose drafts each token is right with this chance, as a seeded generator has it."""
    expectation, draw = AcceptanceEstimate(AcceptanceEstimate()), random.Random(1)
    for _ in range(200):
        expectation.update(8, next(depth for depth in range(9) if depth == 8 or draw.random() > chance))
    return Candidate(expectation, limit)


def drafter(step_s: float, hop_s: float = 0.001, rounds: int = 9) -> DraftCosts:
    """Return the costs of a drafter whose guesses take as long for any batch."""
    costs = DraftCosts()
    for batch in (1, 4, 16, 64):
        for _ in range(rounds):
            costs.update(batch, 4, hop_s + 4 * step_s, [DraftReport(guess_s=4 * step_s, guessed=4)])
    return costs

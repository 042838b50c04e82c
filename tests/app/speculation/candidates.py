"""Make candidates whose drafts are right up to a stated depth."""

import random

from app.speculation.acceptance import AcceptanceEstimate
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

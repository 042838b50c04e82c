"""Make candidates whose drafts are right up to a stated depth."""

from app.estimates.acceptance import AcceptanceEstimate
from app.stages.length.marginal import Candidate


def likely(accepted: int, limit: int = 8, context: int = 0) -> Candidate:
    """Make a candidate of whose drafts the first `accepted` tokens are right."""
    expectation = AcceptanceEstimate(AcceptanceEstimate())
    for _ in range(60):
        expectation.update(8, accepted)
    return Candidate(expectation, limit, context=context)

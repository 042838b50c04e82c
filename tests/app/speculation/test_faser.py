"""Test FASER's search: each request's length is the best by its own rounds."""

import pytest

from app.engine.step_costs import StepCosts
from app.speculation.acceptance import AcceptanceEstimate
from app.speculation.draft_costs import DraftCosts
from app.speculation.faser import MAX_REQUESTS, FaserLength
from app.speculation.marginal import Candidate
from tests.app.speculation.candidates import likely

COSTS = StepCosts({1: 0.02, 2: 0.021, 64: 0.1})
DEAR = StepCosts({1: 0.02, 64: 0.272})  # a row more costs a fifth of the first
DRAFTING = DraftCosts()


def search(rule: FaserLength, candidate: Candidate, right: int, rounds: int = 80) -> list[int]:
    """Return the lengths chosen one after the other, where the first `right` tokens of each draft are right."""
    committed: dict[str, int] = {}
    found = []
    for _ in range(rounds):
        (depth,) = rule.depths({"r": candidate}, DEAR, DRAFTING, 0.0, committed)
        committed = {"r": 1 + min(right, depth)}
        found.append(depth)
    return found


@pytest.mark.parametrize("right", [1, 3, 6])
def test_it_finds_the_best_length_though_the_expectation_is_wrong(right: int) -> None:
    expectation = AcceptanceEstimate(AcceptanceEstimate())  # knows nothing of the request's rounds
    found = search(FaserLength(), Candidate(expectation, 8), right)
    assert sum(abs(depth - right) <= 1 for depth in found[-40:]) >= 32, found
    assert min(found) >= 1


def test_lengths_are_per_request() -> None:
    rule, candidates = FaserLength(), {"sure": likely(4), "unsure": likely(4), "full": likely(8, limit=0)}
    committed: dict[str, int] = {}
    chosen = []
    for _ in range(40):
        chosen.append(rule.depths(candidates, DEAR, DRAFTING, 0.0, committed))
        committed = {"sure": 1 + chosen[-1][0], "unsure": 1, "full": 1}
    sure, unsure, full = (sum(own[-20:]) / 20 for own in zip(*chosen, strict=True))
    assert sure == 8 and unsure < 6 and full == 0, "though the same was expected of both"


def test_where_rows_are_cheap_drafts_are_longer() -> None:
    (cheap,) = FaserLength().depths({"r": likely(4)}, COSTS, DRAFTING, 0.0, {})
    (dear,) = FaserLength().depths({"r": likely(4)}, DEAR, DRAFTING, 0.0, {})
    assert cheap >= dear


def test_lengths_of_requests_that_are_never_verified_take_little_memory() -> None:
    rule = FaserLength()
    rule.record({str(i): 1 for i in range(2 * MAX_REQUESTS)})
    assert len(rule._lengths) == MAX_REQUESTS

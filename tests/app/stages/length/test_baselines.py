"""Test the baseline rules of draft lengths: their lengths, and that FASER's search finds the best."""

import pytest

from app.config import Settings
from app.estimates.acceptance import AcceptanceEstimate
from app.estimates.draft_costs import DraftCosts
from app.estimates.step_costs import StepCosts
from app.stages.length.baselines import (
    BaselineController,
    FaserLength,
    FixedLength,
    UniformLength,
    length_policy,
    whole_chain,
)
from app.stages.length.marginal import Candidate
from app.state import Tree

COSTS = StepCosts({1: 0.02, 2: 0.021, 64: 0.1})
DRAFTING = DraftCosts(0.001)


def likely(accepted: int, limit: int = 8, context: int = 0) -> Candidate:
    """Make a candidate of whose drafts the first `accepted` tokens are right."""
    expectation = AcceptanceEstimate(AcceptanceEstimate())
    for _ in range(60):
        expectation.update(8, accepted)
    return Candidate(expectation, limit, context=context)


def test_fixed_asks_for_as_many_always() -> None:
    assert FixedLength(5).depths([likely(0), likely(8, limit=3)], COSTS, DRAFTING, 0.0, 0) == [5, 3]


def test_uniform_asks_for_the_best_common_length() -> None:
    def asked(*candidates: Candidate) -> list[int]:
        return UniformLength().depths(candidates, COSTS, DRAFTING, 0.0, 0)

    assert asked(likely(3)) == [3]
    assert asked(likely(8), likely(8, limit=2)) == [8, 2]
    (first, second) = asked(likely(6), likely(1))
    assert first == second and 1 <= first <= 6
    assert asked(likely(0), likely(0)) == [0, 0]


def search(rule: FaserLength, true_s: dict[int, float], rounds: int = 120) -> list[int]:
    """Return the lengths chosen, one after the other; `true_s`: seconds a token, by length."""
    now_s, found = 0.0, []
    candidate = likely(8)
    for _ in range(rounds):
        (depth,) = rule.depths([candidate], COSTS, DRAFTING, now_s, tokens=10 if found else 0)
        now_s += 10 * true_s[depth]
        found.append(depth)
    return found


@pytest.mark.parametrize("best", [2, 5, 8])
def test_fasers_search_finds_the_best_length_despite_wrong_costs(best: int) -> None:
    """By the costs the longest one would be the best."""
    found = search(FaserLength(), {depth: 0.004 + 0.002 * abs(depth - best) for depth in range(1, 9)})
    late = found[-40:]
    assert sum(abs(depth - best) <= 1 for depth in late) >= 30, found
    assert min(found) >= 1


def test_a_rule_learns_of_its_last_choice_only_from_the_same_batch() -> None:
    seen: list[int] = []

    class Recording(FixedLength):
        def depths(self, candidates, costs, drafting, now_s, tokens):  # type: ignore[no-untyped-def]
            seen.append(tokens)
            return super().depths(candidates, costs, drafting, now_s, tokens)

    by_length = BaselineController(Recording(2))
    for lengths in (
        {"a": 10, "b": 20},
        {"a": 12, "b": 21},
        {"a": 13},
        {"a": 15},
        {"a": 15, "b": 30},
        {"a": 16, "b": 33},
    ):
        by_length.decide([likely(1) for _ in lengths], lengths, COSTS, DRAFTING, 0.0)
    assert seen == [0, 3, 0, 2, 0, 4]


def test_fasers_lengths_are_per_request() -> None:
    """Tokens go to the sequence whose next ones are likelier to be right."""
    dear = StepCosts({1: 0.02, 64: 1.28})  # a row more costs what the first does
    sure, unsure = FaserLength().depths([likely(8), likely(0)], dear, DRAFTING, 0.0, 0)
    assert sure > unsure
    assert FaserLength().depths([likely(8, limit=0)], COSTS, DRAFTING, 0.0, 0) == [0]


def test_the_whole_chain_is_verified_and_nothing_else() -> None:
    tree = Tree([1, 9, 2], [0, 0, 1], [0.5, 0.3, 0.2], [("a",), ("b",), ("a", "b")])
    assert whole_chain(tree) == Tree([1, 2], [0, 1], [1.0, 1.0], [("a",), ("a", "b")])


@pytest.mark.parametrize("kind", ["tree:0", "fixed:65", "fixed", "tree", "best"])
def test_an_unknown_rule_is_refused(kind: str) -> None:
    with pytest.raises(ValueError):
        Settings(lengths=kind)
    assert length_policy("marginal") is None
    assert all(isinstance(length_policy(one), FixedLength) for one in ("fixed:0", "fixed:64", "tree:4"))

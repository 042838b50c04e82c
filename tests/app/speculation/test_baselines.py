"""Test the baseline rules of draft lengths."""

import pytest

from app.config import Settings
from app.engine.step_costs import StepCosts
from app.speculation.baselines import (
    MAX_KNOWN,
    BaselineController,
    CommittedCounts,
    FixedLength,
    length_policy,
)
from app.speculation.draft_costs import DraftCosts
from app.speculation.faser import MAX_REQUESTS, FaserLength
from app.speculation.length_protocol import DraftBatch, LengthPolicy
from app.speculation.marginal import Candidate
from app.state import Tree
from tests.app.speculation.candidates import likely

COSTS = StepCosts({1: 0.02, 2: 0.021, 64: 0.1})
DRAFTING = DraftCosts()


def ask(rule: LengthPolicy, *candidates: Candidate, costs: StepCosts = COSTS) -> list[int]:
    return rule.depths({str(i): one for i, one in enumerate(candidates)}, costs, DRAFTING, 0.0, {})


def test_fixed_asks_for_as_many_always() -> None:
    assert ask(FixedLength(5), likely(0), likely(8, limit=3)) == [5, 3]


def test_a_rule_learns_what_each_request_committed_since_its_last_decision() -> None:
    seen: list[dict[str, int]] = []

    class Recording(FixedLength):
        def depths(self, candidates, costs, drafting, now_s, committed):  # type: ignore[no-untyped-def]
            seen.append(dict(committed))
            return super().depths(candidates, costs, drafting, now_s, committed)

    by_length = BaselineController(Recording(2))
    for lengths in ({"a": 10, "b": 20}, {"a": 12, "b": 21}, {"a": 13}, {"b": 24}, {"a": 15, "b": 30}):
        batch = [likely(1) for _ in lengths]
        by_length.plan(DraftBatch(batch, None, has_models=True, lengths=lengths, costs=COSTS, now_s=0.0))
    assert seen == [{}, {"a": 2, "b": 1}, {"a": 1}, {"b": 3}, {"a": 2, "b": 6}]


def test_little_is_kept_of_many_requests() -> None:
    rule = FaserLength()
    by_length, committed = BaselineController(rule), CommittedCounts()
    for i in range(MAX_KNOWN + 9):
        for tokens in (10, 12):
            batch = DraftBatch([likely(1)], None, has_models=True, lengths={f"{i}": tokens}, costs=COSTS, now_s=0.0)
            by_length.plan(batch)
            committed.since(batch.lengths)
    assert len(committed.since({f"{i}": 13 for i in range(MAX_KNOWN + 9)})) == MAX_KNOWN
    assert len(rule._lengths) == len(rule._windows) == MAX_REQUESTS


def test_a_tree_has_its_main_branch_as_chain_and_a_fixed_length_has_no_tree() -> None:
    tree = Tree([1, 9, 2], [0, 0, 1], [0.5, 0.3, 0.2], [("a",), ("b",), ("a", "b")])
    assert not BaselineController(FixedLength(2)).is_tree
    assert tree.chain() == Tree([1, 2], [0, 1], [0.5, 0.2], [("a",), ("a", "b")])


@pytest.mark.parametrize("kind", ["tree:0", "fixed:65", "fixed", "tree", "best"])
def test_an_unknown_rule_is_refused(kind: str) -> None:
    with pytest.raises(ValueError):
        Settings().changed(lengths=kind)
    assert length_policy("marginal", 4) is None
    assert all(isinstance(length_policy(one, 4), FixedLength) for one in ("fixed:0", "fixed:64", "tree:4"))

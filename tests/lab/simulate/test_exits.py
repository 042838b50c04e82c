"""Test simulated early exit against closed forms."""

import pytest

from app.engine.step_costs import StepCosts
from app.request import Sampling
from app.state import BatchEntry, CachedSequence, Tree
from lab.simulate.exits import Checkpoint, ExitCosts, Exits, right_nodes

COSTS = StepCosts({1: 0.05, 50: 0.05, 1000: 1.0})  # a row costs nothing up to 50, and a millisecond beyond
CHAIN = Tree([7, 8, 9], [0, 1, 2], [1.0] * 3, [("a",)] * 3)


def entry(*, may_exit: bool = True) -> BatchEntry:
    sequence = CachedSequence("0.0", [1, 2], Sampling(seed=0), "public")
    return BatchEntry(sequence, 1, [2], CHAIN.cut(3), True, may_exit=may_exit)


def exits(auc: float, lost: float = 0.0001, look: float = 0.0, fixed_s: float = 0.0) -> Exits:
    return Exits(ExitCosts((Checkpoint(0.25, auc),), lost, look, fixed_s))


def test_wrong_rows_that_are_found_save_the_compute_of_the_layers_left() -> None:
    works = [entry() for _ in range(100)]
    own = exits(1.0 - 1e-9)
    seconds, rows = own.pass_s(works, lambda work: [False] * 3, COSTS)
    whole_s, after_s = COSTS.seconds(400), COSTS.seconds(100)
    assert seconds == pytest.approx(0.25 * whole_s + 0.75 * after_s)
    assert rows == pytest.approx(0.25 * 400 + 0.75 * 100)
    assert all({*work.pruned} == {1, 2, 3} for work in works)
    (left,) = own.report().left
    assert left == (0.75, 400, 100) and own.rest == 0.75


def test_nothing_is_saved_where_rows_are_free_and_looks_cost() -> None:
    works = [entry() for _ in range(10)]
    seconds, _ = exits(1.0 - 1e-9, look=0.5, fixed_s=2e-3).pass_s(works, lambda work: [False] * 3, COSTS)
    assert seconds == pytest.approx(COSTS.seconds(40) + COSTS.seconds(40 + 15) - COSTS.seconds(40) + 2e-3)


def test_only_entries_that_may_exit_are_looked_at() -> None:
    works = [entry(may_exit=False)]
    seconds, rows = exits(0.99).pass_s(works, lambda work: [False] * 3, COSTS)
    assert (seconds, rows) == (COSTS.seconds(4), 4) and not works[0].pruned


def test_a_prompts_rows_have_no_logits_with_a_look_or_without() -> None:
    costs = StepCosts({1: 0.05, 1000: 1.0}, logits_s=0.0004)
    prompt = BatchEntry(CachedSequence("1.0", [1] * 40, Sampling(seed=0), "public"), 0, [1] * 40, Tree(), True)
    whole_s = costs.seconds(44, 39)
    for may_exit in (False, True):
        seconds, _ = exits(0.5, 1e-9).pass_s(
            [entry(may_exit=may_exit), prompt], lambda work: [True] * len(work.tree), costs
        )
        assert seconds == pytest.approx(whole_s), "no row left"


def test_right_rows_are_lost_and_wrong_ones_found_as_the_roc_has_it() -> None:
    lost = _share(0.9, 0.05, is_right=True)
    found = _share(0.9, 0.05, is_right=False)
    assert lost == pytest.approx(0.05, abs=0.02)
    assert found == pytest.approx(exits(0.9, 0.05)._costs.found(Checkpoint(0.25, 0.9)), abs=0.04)
    assert 0.4 < found < 0.7
    assert _share(0.5, 0.05, is_right=False) == pytest.approx(0.05, abs=0.02), "chance finds no more than it loses"


def test_all_below_a_node_that_leaves_leave() -> None:
    work = entry()
    own = exits(1.0 - 1e-9)
    own.pass_s([work], lambda _: [True, False, False], COSTS)
    assert {*work.pruned} == {2, 3}


def test_nodes_are_right_where_they_and_all_before_them_are_the_texts() -> None:
    tree = Tree([5, 6, 9, 7], [0, 1, 0, 3], [1.0] * 4, [("a",)] * 4)
    assert right_nodes(tree, [4, 5, 6, 7], 1) == [True, True, False, False]
    assert right_nodes(tree, [4, 5], 1) == [True, False, False, False]


def _share(auc: float, lost: float, *, is_right: bool) -> float:
    """Return the part of first nodes that leave."""
    works = [entry() for _ in range(1500)]
    exits(auc, lost).pass_s(works, lambda work: [is_right] * 3, COSTS)
    return sum(1 in work.pruned for work in works) / len(works)

"""Test the marginal-gain rule of `app.scheduler.tree_budget`: how much of each tree to verify."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.step_costs import StepCosts
from app.scheduler.tree_budget import cut
from app.state import Tree
from tests.steps import lines_run

MEASURED = StepCosts({1: 0.045, 2: 0.052, 4: 0.057, 8: 0.066, 16: 0.083, 32: 0.115})
FLAT = StepCosts({1: 1.0, 1000: 1.0})

falling = st.lists(st.floats(0, 1), max_size=5).map(lambda s: sorted(s, reverse=True))
steps = st.lists(st.floats(0.01, 1.0), min_size=1, max_size=8).map(
    lambda ms: StepCosts({i + 1: sum(ms[: i + 1]) for i in range(len(ms))})
)


def chain(survival: list[float]) -> Tree:
    return Tree(list(range(len(survival))), list(range(len(survival))), survival, [("a",)] * len(survival))


@given(st.lists(falling, max_size=4), st.integers(0, 6), steps, st.integers(0, 20))
def test_cut_is_the_best_of_all_choices(
    survivals: list[list[float]], extra: int, costs: StepCosts, max_rows: int
) -> None:
    trees, base = [chain(s) for s in survivals], len(survivals) + extra
    kept = cut(trees, base, costs, max_rows)

    def pace(survival: list[float]) -> float:
        return (len(trees) + sum(survival)) / costs.seconds(base + len(survival))

    every = sorted((s for tree in trees for s in tree.survival), reverse=True)
    room = max(0, max_rows - base)
    best = max(pace(every[:n]) for n in range(min(room, len(every)) + 1))
    chosen = [s for tree, n in zip(trees, kept, strict=True) for s in tree.survival[:n]]
    assert len(chosen) <= room
    assert pace(chosen) == pytest.approx(best)


def test_cut_looks_past_a_step_in_the_cost() -> None:
    stairs = StepCosts({1: 1.0, 2: 2.0, 8: 2.0})
    assert cut([chain([0.9])], 1, stairs, 8) == [0]
    assert cut([chain([0.9, 0.8, 0.7])], 1, stairs, 8) == [3]


def test_cut_takes_no_node_that_does_not_pay() -> None:
    assert cut([chain([0.02, 0.01])], 1, MEASURED, 64) == [0]
    assert cut([chain([0.9, 0.8]), chain([0.01])], 2, MEASURED, 64) == [2, 0]
    assert cut([], 0, MEASURED, 64) == []


def test_cut_breaks_ties_by_place() -> None:
    assert cut([chain([0.5, 0.5]), chain([0.5])], 2, FLAT, 4) == [2, 0]


def test_cut_never_takes_a_child_without_its_parent() -> None:
    broken = chain([0.1, 0.9])  # breaks the contract of a tree
    assert cut([broken, chain([0.5])], 2, FLAT, 3) == [0, 1]


def test_cutting_64_trees_of_16_nodes_takes_few_steps() -> None:
    rng = random.Random(0)
    trees = [chain(sorted((rng.random() for _ in range(16)), reverse=True)) for _ in range(64)]
    assert lines_run(lambda: cut(trees, 64, MEASURED, 4096)) < 7_000, "about a millisecond"

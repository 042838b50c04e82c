"""Test what a tree is found to cost the host: the excess over steps without trees, whatever the batch."""

import pytest

from app.recent import RECENT
from app.speculation.host_costs import HostCosts


def test_a_tree_costs_what_its_steps_take_more():
    costs = HostCosts()
    costs.update(4, 4, 0.010)
    assert costs.tree_s == 0.0, "nothing to compare with is known"
    for _ in range(RECENT):
        costs.update(4, 0, 0.002)
        costs.update(4, 2, 0.003)
    assert costs.tree_s == pytest.approx(0.0005)
    for _ in range(RECENT):
        costs.update(4, 4, 0.001)
    assert costs.tree_s == 0.0


def test_the_nearest_size_is_compared_with():
    costs = HostCosts()
    for _ in range(RECENT):
        costs.update(1, 0, 0.001)
        costs.update(64, 0, 0.0064)
        costs.update(60, 60, 0.012)
    assert costs.tree_s == pytest.approx(0.0001)


def test_a_pause_moves_nothing_nor_does_nonsense():
    costs = HostCosts()
    for _ in range(RECENT):
        costs.update(2, 0, 0.001)
        costs.update(2, 2, 0.002)
    before = costs.tree_s
    for wrong in (5.0, -1.0, float("nan"), float("inf")):
        costs.update(2, 2, wrong)
    costs.update(0, 0, 1.0)
    assert costs.tree_s == before


@pytest.mark.parametrize("slow_s", [0.05, 5.0])
def test_a_slow_first_step_is_forgotten_at_the_next(slow_s: float) -> None:
    """It loads the tables; a process that has just started must not give drafting up for it."""
    costs = HostCosts()
    costs.update(1, 0, slow_s)
    costs.update(1, 0, 0.001)
    costs.update(1, 1, slow_s)
    assert costs.tree_s == 0.0
    costs.update(1, 1, 0.003)
    assert costs.tree_s == pytest.approx(0.002)


@pytest.mark.parametrize("sequences", [1, 3, 40])
def test_the_hosts_seconds_of_a_plain_step_are_those_of_the_nearest_size(sequences):
    costs = HostCosts()
    assert costs.plain_s(sequences) == 0.0
    costs.update(2, 0, 0.004)
    costs.update(32, 0, 0.032)
    each_s = 0.001 if sequences == 40 else 0.002
    assert costs.plain_s(sequences) == pytest.approx(sequences * each_s)

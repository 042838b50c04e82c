"""Checkpoints of steps: which steps have one, the survival that keeps a row, the step cost reported."""

import pytest

from app.engine.early_exit.controller import EVERY, TRIES, EarlyExitController
from app.estimates.step_costs import StepCosts
from app.state import BatchEntry
from tests import fakes

COSTS = StepCosts({1: 0.02, 11: 0.03})  # a row costs a millisecond


def batch(survival: list[float], sequences: int = 1) -> list[BatchEntry]:
    """Return batch entries of one token and a chain each."""
    found = []
    for _ in range(sequences):
        drafts = fakes.tree(range(len(survival)))
        drafts.survival = survival
        found.append(fakes.work(fakes.cached([5]), 0, drafts=drafts))
    return found


def test_a_node_must_survive_as_much_as_its_row_still_costs():
    works = batch([0.5, 0.25])
    EarlyExitController("on", rest=0.5).allow(works, COSTS)
    tokens_a_second = (1 + 0.75) / 0.022
    assert works[0].floor == pytest.approx(tokens_a_second * 0.5 * 0.001)


def test_where_rows_cost_nothing_all_stay():
    works = batch([0.5, 0.25])
    EarlyExitController("on", rest=0.5).allow(works, StepCosts(fakes.FLAT))
    assert works[0].floor == 0.0


@pytest.mark.parametrize(
    "pruning", [EarlyExitController(), EarlyExitController("off", rest=0.5), EarlyExitController("on", rest=0.0)]
)
def test_no_checkpoint_where_early_exit_is_off_or_impossible(pruning):
    works = batch([0.5, 0.25])
    pruning.allow(works, COSTS)
    pruning.update(works, COSTS)
    assert works[0].floor == 0.0
    assert pruning.whole_s(works, COSTS, 0.03) == 0.03
    assert pruning.looked_at == 0


def play(pruning: EarlyExitController, pruned: dict[int, float], steps: int) -> int:
    """Count the steps, of so many, that had a checkpoint."""
    had = 0
    for _ in range(steps):
        works = batch([0.5, 0.25])
        pruning.allow(works, COSTS)
        if works[0].floor > 0.0:
            had += 1
            works[0].pruned = pruned
        pruning.update(works, COSTS)
    return had


def test_auto_goes_on_where_checkpoints_save_more_than_they_take():
    pruning = EarlyExitController("auto", rest=0.5, spent_s=lambda: 0.0002)
    assert play(pruning, {2: 0.01}, 200) == 200  # half a millisecond each, less a hundredth of a token
    assert (pruning.dropped, pruning.looked_at) == (200, 400)


@pytest.mark.parametrize(("spent_s", "pruned"), [(0.0006, {2: 0.01}), (0.0002, {}), (0.0002, {2: 0.06})])
def test_auto_stops_where_checkpoints_take_more_than_they_save(spent_s, pruned):
    pruning = EarlyExitController("auto", rest=0.5, spent_s=lambda: spent_s)
    assert play(pruning, pruned, TRIES + EVERY - 1) == TRIES
    assert play(pruning, pruned, EVERY) == 1, "and looks again now and then"
    assert play(EarlyExitController("on", rest=0.5, spent_s=lambda: spent_s), pruned, 50) == 50


def test_batches_of_other_sizes_are_judged_apart():
    pruning = EarlyExitController("auto", rest=0.5, spent_s=lambda: 0.0006)
    play(pruning, {2: 0.01}, TRIES)
    small, large = batch([0.5, 0.25]), batch([0.5, 0.25], 8)
    pruning.allow(small, COSTS)
    pruning.allow(large, COSTS)
    assert (small[0].floor > 0.0, large[0].floor > 0.0) == (False, True)


def test_step_costs_learn_what_the_whole_step_would_have_taken():
    pruning = EarlyExitController("on", rest=0.5, spent_s=lambda: 0.0003)
    works = batch([0.5, 0.25])
    pruning.allow(works, COSTS)
    works[0].pruned = {1: 0.1, 2: 0.05}
    assert pruning.whole_s(works, COSTS, 0.022 - 0.001 + 0.0003) == pytest.approx(0.022)
    assert pruning.error.value == pytest.approx(0.0, abs=1e-9), "that was expected"
    pruning.whole_s(works, COSTS, 2 * (0.022 - 0.001 + 0.0003 + 0.004), reading_s=0.004)
    assert 0.2 < (pruning.error.value or 0.0) < 0.3, "the mean of nothing and a half"

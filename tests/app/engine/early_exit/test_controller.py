"""Checkpoints of steps: which steps have one, the survival that keeps a row, the step cost reported."""

import pytest

from app.engine.early_exit.controller import EVERY, TRIES, EarlyExitController, ExitReport
from app.engine.step_costs import StepCosts
from app.state import BatchEntry, Verdict
from tests import fakes

COSTS = StepCosts({1: 0.02, 11: 0.03})  # a row costs a millisecond
VERDICTS = [Verdict([], [4])]
ONE_LEFT = ((0.5, 3, 2),)  # of three rows, half way


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
    assert works[0].floor == pytest.approx(tokens_a_second * 0.001), "and the pruner takes the part to come"


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
    pruning.update(works, VERDICTS, COSTS)
    assert works[0].floor == 0.0
    assert pruning.whole_s(works, COSTS, 0.03) == 0.03
    assert pruning.looked_at == 0


def after(took_s: float, left: tuple[tuple[float, int, int], ...] = ONE_LEFT, mode="auto") -> EarlyExitController:
    """Return a controller whose passes take and save this by their checkpoints."""
    return EarlyExitController(mode, 0.5, lambda: ExitReport(took_s, left))


def play(pruning: EarlyExitController, steps: int, cut: int | None = None, survival=(0.5, 0.25)) -> int:
    """Count the steps, of so many, that had a checkpoint."""
    had = 0
    for _ in range(steps):
        works = batch(list(survival))
        pruning.allow(works, COSTS)
        if works[0].floor > 0.0:
            had += 1
            works[0].pruned = {2: 0.01}
        pruning.update(works, [Verdict([], [4], cut=cut)], COSTS)
    return had


def test_auto_goes_on_where_checkpoints_save_more_than_they_take():
    pruning = after(0.0002)
    assert play(pruning, 200) == 200  # half a millisecond each
    assert (pruning.dropped, pruning.looked_at, pruning.cut) == (200, 400, 0)


@pytest.mark.parametrize(
    ("took_s", "left", "cut"), [(0.0006, ONE_LEFT, None), (0.0002, (), None), (0.0002, ONE_LEFT, 2)]
)
def test_auto_stops_where_checkpoints_take_more_than_they_save(took_s, left, cut):
    pruning = after(took_s, left)
    assert play(pruning, TRIES + EVERY - 1, cut) == TRIES
    assert play(pruning, EVERY, cut) == 1, "and looks again now and then"
    assert play(after(took_s, left, "on"), 50, cut) == 50


def test_the_savings_of_several_depths_add_up():
    both = after(0.0009, ((0.75, 3, 2), (0.25, 2, 1)))  # 0.75 + 0.25 ms
    assert play(both, 100) == 100
    assert play(after(0.0009, ((0.75, 3, 2),)), 100) < 100


def test_a_right_node_that_left_costs_those_below_it_too():
    """A cut at the first node loses it and what was expected below: 1.5 tokens, not 1."""
    left = ((0.5, 3, 1),)  # saves a millisecond
    token_s = 0.022 / 1.75
    for cut, lost in ((1, 1.5), (2, 1.0)):
        saved_s = 0.0001 + lost * token_s
        whole = tuple(left * int(saved_s / 0.001 + 1))
        fewer = tuple(left * int(saved_s / 0.001))
        assert play(after(0.0001, whole), 50, cut) == 50
        assert play(after(0.0001, fewer), 50, cut) == TRIES


def test_auto_does_not_look_where_all_wrong_rows_are_worth_less_than_the_look():
    """FASER's gate: expected rejects x the layers left x the price of a row, against what a look took."""
    pruning = after(0.0009, ((0.5, 3, 1),))
    assert play(pruning, 50) == 50, "2 - 0.75 wrong ones, rounded up, save a millisecond"
    assert play(pruning, 10 * EVERY, survival=(0.9, 0.8)) == 0, "0.3 wrong ones do not, and are not tried either"
    assert play(after(0.0009, ((0.5, 3, 1),)), 3, survival=(0.9, 0.8)) == 1, "what a look takes is not known at first"
    assert play(after(0.0009, ((0.5, 3, 1),), "on"), 50, survival=(0.9, 0.8)) == 50


def test_batches_of_other_sizes_are_judged_apart():
    pruning = after(0.0006)
    play(pruning, TRIES)
    small, large = batch([0.5, 0.25]), batch([0.5, 0.25], 8)
    pruning.allow(small, COSTS)
    pruning.allow(large, COSTS)
    assert (small[0].floor > 0.0, large[0].floor > 0.0) == (False, True)


def test_a_prompt_in_the_step_is_expected_without_its_logits():
    costs = StepCosts({1: 0.02, 11: 0.03}, logits_s=0.0004)
    pruning = after(0.0003, ((0.5, 8, 6),), "on")
    works = [*batch([0.5, 0.25]), fakes.work(fakes.cached([5] * 5), 0)]
    pruning.allow(works, costs)
    works[0].pruned = {1: 0.1, 2: 0.05}
    whole_s = costs.seconds(8, 4)
    assert pruning.whole_s(works, costs, whole_s - 0.001 + 0.0003) == pytest.approx(whole_s)
    assert pruning.error.value == pytest.approx(0.0, abs=1e-9)


def test_step_costs_learn_what_the_whole_step_would_have_taken():
    pruning = after(0.0003, ((0.5, 3, 1),), "on")
    works = batch([0.5, 0.25])
    pruning.allow(works, COSTS)
    works[0].pruned = {1: 0.1, 2: 0.05}
    assert pruning.whole_s(works, COSTS, 0.022 - 0.001 + 0.0003) == pytest.approx(0.022)
    assert pruning.error.value == pytest.approx(0.0, abs=1e-9), "that was expected"
    pruning.whole_s(works, COSTS, 2 * (0.022 - 0.001 + 0.0003 + 0.004), reading_s=0.004)
    assert 0.2 < (pruning.error.value or 0.0) < 0.3, "the mean of nothing and a half"

"""Checkpoints of steps: which steps have them, what is counted, the step cost reported."""

import pytest

from app.engine.early_exit.controller import EarlyExitController, ExitReport
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


@pytest.mark.parametrize(
    "pruning", [EarlyExitController(), EarlyExitController("off", rest=0.5), EarlyExitController("on", rest=0.0)]
)
def test_no_checkpoint_where_early_exit_is_off_or_impossible(pruning):
    works = batch([0.5, 0.25])
    pruning.allow(works, COSTS)
    pruning.update(works, VERDICTS)
    assert not works[0].may_exit
    assert pruning.whole_s(works, COSTS, 0.03) == 0.03
    assert pruning.looked_at == 0


def after(took_s: float, left: tuple[tuple[float, int, int], ...] = ONE_LEFT, mode="auto") -> EarlyExitController:
    """Return a controller whose passes take and save this by their checkpoints."""
    return EarlyExitController(mode, 0.5, lambda: ExitReport(took_s, left))


def play(pruning: EarlyExitController, steps: int, cut: int | None = None, accepted: int = 0, **wish: bool) -> int:
    """Count the steps, of so many, that had a checkpoint; of two draft tokens so many are accepted."""
    had = 0
    for _ in range(steps):
        works = batch([0.5, 0.25])
        pruning.allow(works, COSTS, **wish)
        if works[0].may_exit:
            had += 1
            works[0].pruned = {2}
        pruning.update(works, [Verdict([*range(1, accepted + 1)], [4], cut=cut)])
    return had


def test_auto_looks_where_the_rows_expected_wrong_are_worth_more_than_a_look():
    """FASER's gate: expected rejects x the layers left x the price of a row, against what a look took."""
    pruning = after(0.0009)
    assert play(pruning, 51) == 50, "two wrong ones save a millisecond; at first nothing is known"
    assert (pruning.dropped, pruning.looked_at, pruning.cut) == (50, 100, 0)
    assert play(pruning, 50, accepted=1) < 30, "one wrong one does not"
    assert play(pruning, 50, is_wanted=False) == 0, "the policy does not want it"
    assert play(after(0.0009), 50, accepted=2) == 0, "none is wrong"
    assert play(after(0.0011), 50) == 1, "what a look takes is not known at first"
    assert play(after(0.0009, mode="on"), 50, accepted=2, is_wanted=False) == 50


def test_a_right_node_that_left_is_counted():
    pruning = after(0.0002)
    play(pruning, 8, cut=2)
    assert pruning.cut == 7


def test_looks_are_priced_by_the_size_of_the_step():
    pruning = after(0.0011)
    play(pruning, 3)
    small, large = batch([0.5, 0.25]), batch([0.5, 0.25], 8)
    pruning.allow(small, COSTS)
    pruning.allow(large, COSTS)
    assert (small[0].may_exit, large[0].may_exit) == (False, True)


def test_a_prompt_in_the_step_is_expected_without_its_logits():
    costs = StepCosts({1: 0.02, 11: 0.03}, logits_s=0.0004)
    pruning = after(0.0003, ((0.5, 8, 6),), "on")
    works = [*batch([0.5, 0.25]), fakes.work(fakes.cached([5] * 5), 0)]
    pruning.allow(works, costs)
    works[0].pruned = {1, 2}
    whole_s = costs.seconds(8, 4)
    assert pruning.whole_s(works, costs, whole_s - 0.001 + 0.0003) == pytest.approx(whole_s)
    assert pruning.error.value == pytest.approx(0.0, abs=1e-9)


def test_step_costs_learn_what_the_whole_step_would_have_taken():
    pruning = after(0.0003, ((0.5, 3, 1),), "on")
    works = batch([0.5, 0.25])
    pruning.allow(works, COSTS)
    works[0].pruned = {1, 2}
    assert pruning.whole_s(works, COSTS, 0.022 - 0.001 + 0.0003) == pytest.approx(0.022)
    assert pruning.error.value == pytest.approx(0.0, abs=1e-9), "that was expected"
    pruning.whole_s(works, COSTS, 2 * (0.022 - 0.001 + 0.0003 + 0.004), reading_s=0.004)
    assert 0.2 < (pruning.error.value or 0.0) < 0.3, "the mean of nothing and a half"

"""Test the mean error of estimates, alone and in the costs that keep one."""

import pytest

from app.engine.step_costs import StepCosts
from app.mean_error import MeanError


def test_it_is_the_mean_of_what_was_measured_and_forgets() -> None:
    error = MeanError()
    assert error.value is None
    error.update(0.9, 1.0)
    error.update(2.6, 2.0)
    assert error.value == pytest.approx(0.2, rel=0.01)
    for _ in range(1000):
        error.update(1.0, 1.0)
    assert error.value is not None and error.value < 1e-4


def test_costs_tell_how_far_they_were_off_before_they_learnt() -> None:
    steps = StepCosts({1: 0.1, 8: 0.1})
    steps.correct(1, 0.2)
    assert steps.error.value == pytest.approx(0.5)

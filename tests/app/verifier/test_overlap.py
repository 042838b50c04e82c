"""Test which work goes on while a verdict is pending."""

import pytest

from app.assembly.verifier import overlap
from app.config import Settings
from app.estimates.step_costs import StepCosts

FLAT = StepCosts({1: 0.010, 64: 0.010})  # half a batch takes as long as a whole one
STEEP = StepCosts({1: 0.001, 64: 0.064})


def chosen(name, lengths="marginal"):
    return overlap(Settings.model_validate({"overlap": name, "lengths": lengths}))


@pytest.mark.parametrize(
    ("name", "share", "may"),
    [
        ("auto", 0.0, True),
        ("auto", 1.0, False),
        ("none", 0.0, False),
        ("rounds", 1.0, True),
        ("frontiers", 1.0, True),
        ("groups", 0.0, False),
    ],
)
@pytest.mark.parametrize("lengths", ["marginal", "faser"])
def test_drafters_run_ahead_by_setting_or_where_it_is_free(name, share, may, lengths):
    assert chosen(name, lengths).runs_ahead(share) == may


def test_halves_take_turns_by_setting_or_where_half_costs_half():
    assert chosen("none").goes_together(STEEP, 8, 1.0)
    assert not chosen("groups").goes_together(FLAT, 8, 0.0)
    assert chosen("groups").goes_together(FLAT, 1, 1.0)  # no other to take turns with
    assert chosen("auto").goes_together(FLAT, 8, 0.005)
    assert not chosen("auto").goes_together(STEEP, 8, 0.005)


def test_frontiers_wait_for_the_first_half_of_a_draft():
    assert [chosen("frontiers").frontier(depth) for depth in (0, 1, 2, 5, 8)] == [0, 1, 1, 3, 4]
    assert chosen("rounds").frontier(5) == 5


def test_a_length_for_a_whole_batch_keeps_it_whole_unless_groups_are_set():
    assert chosen("auto", "uniform").goes_together(STEEP, 8, 1.0)
    assert not chosen("auto", "cosine").goes_together(STEEP, 8, 1.0)
    assert not chosen("groups", "uniform").goes_together(STEEP, 8, 1.0)

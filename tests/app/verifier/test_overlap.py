"""Which work goes on while a verdict is pending."""

import pytest

from app.estimates.step_costs import StepCosts
from app.verifier.overlap import frontier, goes_together, runs_ahead

FLAT = StepCosts({1: 0.010, 64: 0.010})  # half a batch takes as long as a whole one
STEEP = StepCosts({1: 0.001, 64: 0.064})


@pytest.mark.parametrize(
    ("overlap", "share", "may"),
    [
        ("auto", 0.0, True),
        ("auto", 1.0, False),
        ("rounds", 1.0, True),
        ("frontiers", 1.0, True),
        ("groups", 0.0, False),
    ],
)
def test_drafters_run_ahead_where_asked_to_or_where_it_costs_the_verifier_nothing(overlap, share, may):
    assert runs_ahead(overlap, share) == may


def test_groups_take_turns_where_asked_to_or_where_half_a_batch_costs_half():
    assert goes_together("none", STEEP, 8, 1.0)
    assert not goes_together("groups", FLAT, 8, 0.0)
    assert goes_together("groups", FLAT, 1, 1.0)  # nobody to take turns with
    assert goes_together("auto", FLAT, 8, 0.005)
    assert not goes_together("auto", STEEP, 8, 0.005)


def test_of_a_round_in_frontiers_the_first_half_is_waited_for():
    assert [frontier("frontiers", depth) for depth in (0, 1, 2, 5, 8)] == [0, 1, 1, 3, 4]
    assert frontier("rounds", 5) == 5

"""Test which work goes on while a verdict is pending."""

import pytest

from app.assembly.verifier import overlap
from app.config import Settings
from app.engine.step_costs import StepCosts

FLAT = StepCosts({1: 0.010, 64: 0.010})  # half a batch takes as long as a whole one
STEEP = StepCosts({1: 0.001, 64: 0.064})


def in_any_batch(sequences):
    """Return the seconds of drafting, the same for any number of sequences."""
    return 0.005


@pytest.mark.parametrize(
    ("rule", "share", "may"), [("auto", 0.0, True), ("auto", 1.0, False), ("none", 0.0, False), ("halves", 0.0, False)]
)
def test_drafters_run_ahead_where_it_is_free(rule, share, may):
    assert chosen(rule).runs_ahead(share) == may


def chosen(rule):
    return overlap(Settings().changed(overlap=rule))


def test_halves_take_turns_always_or_where_half_costs_half():
    assert chosen("none").goes_together(STEEP, 8, in_any_batch)
    assert chosen("auto").goes_together(STEEP, 8, in_any_batch)
    assert not chosen("always-halves").goes_together(FLAT, 8, lambda n: 0.0)
    assert chosen("always-halves").goes_together(FLAT, 1, in_any_batch)  # no other to take turns with
    assert chosen("halves").goes_together(FLAT, 8, in_any_batch)
    assert not chosen("halves").goes_together(STEEP, 8, in_any_batch)
    assert chosen("halves").goes_together(STEEP, 1, in_any_batch)


def test_halves_do_not_pay_where_drafting_or_a_step_costs_the_same_for_any_batch():
    halves = chosen("halves")
    assert halves.goes_together(FLAT, 8, lambda n: 1.0), "however slow drafters are"
    assert halves.goes_together(FLAT, 8, lambda n: 0.1 * n), "half waits for the other's drafts"
    assert halves.goes_together(STEEP, 8, lambda n: 1.0), "drafters serve one half after the other"
    assert not halves.goes_together(STEEP, 8, lambda n: 0.001 * n), "both do half the work"
    assert halves.goes_together(STEEP, 8, lambda n: 0.0), "nothing to hide"

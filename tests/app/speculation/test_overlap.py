"""Test which work goes on while a verdict is pending."""

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.assembly.verifier import overlap
from app.config import Settings
from app.engine.step_costs import StepCosts
from app.speculation.overlap import Round

FLAT = StepCosts({1: 0.010, 64: 0.010})  # half a batch takes as long as a whole one
STEEP = StepCosts({1: 0.001, 64: 0.064})


def in_any_batch(sequences):
    """Return the seconds of drafting, the same for any number of sequences."""
    return 0.005


SURE, DOUBTFUL = [0.95**depth for depth in range(1, 8)], [0.5**depth for depth in range(1, 8)]  # drafts of 6


def free(tokens):
    return 0.0


def slow(tokens):
    return 0.002 * tokens


@pytest.mark.parametrize(("rule", "share", "may"), [("auto", 0.0, True), ("auto", 1.0, False), ("none", 0.0, False)])
def test_drafters_run_ahead_where_it_is_free(rule, share, may):
    assert chosen(rule).runs_ahead(Round([SURE], FLAT, slow), share) == may


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


def test_within_a_half_drafters_run_ahead_as_they_would_in_the_whole():
    sure = Round([SURE], FLAT, slow)
    assert chosen("halves").runs_ahead(sure, 0.0) and not chosen("always-halves").runs_ahead(sure, 0.0)
    assert chosen("halves").chunk(sure, 0.0) == chosen("auto").chunk(sure, 0.0)


def test_a_sequence_without_a_draft_spoils_no_other_ones():
    both = Round([SURE, SURE[:1]], FLAT, slow)
    assert both.deepest == Round([SURE], FLAT, slow).deepest
    doubtful = Round([SURE, [0.1]], FLAT, slow)
    assert doubtful.pace_ahead(2) == pytest.approx(both.pace_ahead(2)), "its next token is not drafted"


def test_drafters_run_ahead_by_default_where_hits_save_more_than_misses_delay():
    auto = chosen("auto")
    assert not auto.runs_ahead(Round([DOUBTFUL], FLAT, slow), 0.0), "half a guess, lost almost always"
    assert not auto.runs_ahead(Round([SURE] * 8, FLAT, slow), 0.0), "one of many is wrong, and all wait for it"
    assert auto.runs_ahead(Round([DOUBTFUL], FLAT, free), 0.0), "nothing is known of what a guess takes"


def test_a_chunk_is_short_where_drafting_is_slow_and_tokens_are_doubtful():
    def chunk(survivals, drafting_s):
        return Round(survivals, FLAT, drafting_s).best_ahead

    assert chunk([DOUBTFUL], free) == 6, "nothing to hide"
    assert chunk([DOUBTFUL], slow) == 1
    assert chunk([SURE], slow) == 4, "what a step hides, but for the target's own token"
    assert chunk([DOUBTFUL, SURE[:2]], slow) == 1


def test_drafts_are_cut_by_default_where_that_pays():
    chunk = chosen("auto").chunk
    assert chunk(Round([SURE], FLAT, lambda tokens: 0.005 * tokens), 0.0) == 1, "a guess is half a step"
    assert chunk(Round([DOUBTFUL[:2]] * 8, FLAT, slow), 0.0) is None, "nothing is kept"
    assert chunk(Round([SURE], FLAT, lambda tokens: 0.005 * tokens), 0.5) is None, "on the verifier's cores"


@given(st.lists(st.floats(0.05, 0.99), min_size=1, max_size=3), st.integers(1, 8), st.floats(0.0, 0.02))
def test_a_chunk_has_the_best_pace_of_simulated_rounds(chances, depth, token_s):
    """By walking both outcomes: all of a chunk and the target's token right, or not, and what that round takes."""
    asked = Round([[p**level for level in range(1, depth + 2)] for p in chances], FLAT, lambda n: token_s * n)

    def pace(size):
        step_s = FLAT.seconds(len(chances) * (1 + size))
        right = prod(p ** (size + 1) for p in chances)
        tokens = sum(sum(p**level for level in range(size + 1)) for p in chances)
        hit_s = max(step_s, token_s * (size + 1))
        return tokens / (right * hit_s + (1 - right) * (step_s + token_s * (size + 0.5)))

    assert pace(asked.best_ahead) == pytest.approx(max(pace(size) for size in range(1, depth + 1)))
    assert asked.pace_ahead(asked.best_ahead) == pytest.approx(pace(asked.best_ahead))

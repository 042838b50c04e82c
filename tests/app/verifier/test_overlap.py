"""Test which work goes on while a verdict is pending."""

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.assembly.verifier import overlap
from app.config import Settings
from app.estimates.step_costs import StepCosts
from app.verifier.overlap import best_chunk

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


def slow(tokens):
    return 0.002 * tokens


def test_a_chunk_is_short_where_drafting_is_slow_and_tokens_are_doubtful():
    doubtful, sure = [0.5**depth for depth in range(1, 7)], [0.95**depth for depth in range(1, 7)]
    chunk = chosen("frontiers").chunk
    assert chunk([doubtful], FLAT, lambda tokens: 0.0) == 6, "nothing to hide"
    assert chunk([doubtful], FLAT, slow) == 1
    assert chunk([sure], FLAT, slow) == 5, "what a step hides"
    assert chunk([doubtful, sure[:1]], FLAT, slow) == 1
    assert chosen("rounds").chunk([doubtful], FLAT, slow) is None


@given(st.lists(st.floats(0.05, 0.99), min_size=1, max_size=3), st.integers(1, 8), st.floats(0.0, 0.02))
def test_a_chunk_has_the_best_pace_of_simulated_rounds(chances, depth, token_s):
    """By walking all outcomes: which sequences have all of a chunk right, and what that round takes."""
    survivals = [[p**level for level in range(1, depth + 1)] for p in chances]

    def pace(size):
        step_s, draft_s = FLAT.seconds(len(chances) * (1 + size)), token_s * size
        right = prod(own[size - 1] for own in survivals)
        tokens = sum(1 + sum(own[:size]) for own in survivals)
        return tokens / (right * max(step_s, draft_s) + (1 - right) * (step_s + draft_s))

    chosen_size = best_chunk(survivals, FLAT, lambda tokens: token_s * tokens)
    assert pace(chosen_size) == pytest.approx(max(pace(size) for size in range(1, depth + 1)))


def test_a_length_for_a_whole_batch_keeps_it_whole_unless_groups_are_set():
    assert chosen("auto", "uniform").goes_together(STEEP, 8, 1.0)
    assert not chosen("auto", "cosine").goes_together(STEEP, 8, 1.0)
    assert not chosen("groups", "uniform").goes_together(STEEP, 8, 1.0)

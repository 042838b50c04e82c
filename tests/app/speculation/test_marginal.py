"""Test how many draft tokens are asked for."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from app.engine.step_costs import Reading, StepCosts
from app.speculation.acceptance import AcceptanceEstimate
from app.speculation.draft_costs import DraftCosts
from app.speculation.marginal import (
    HORIZON_TOKENS,
    MIN_GAIN,
    Candidate,
    DraftPrice,
    draft_lengths,
    worth_s,
)
from tests.app.speculation.candidates import drafter
from tests.steps import lines_run

MEASURED = StepCosts({1: 0.045, 2: 0.052, 4: 0.057, 8: 0.066, 16: 0.083, 32: 0.115})


def decide(candidates: list[Candidate], costs: StepCosts, drafts: DraftCosts, **work):
    return draft_lengths(candidates, costs, DraftPrice(drafts, **work))


def ask(*words, **rest) -> list[int]:
    return decide(*words, **rest)[0]


def learnt(accepted: int, drafted: int = 8, rounds: int = 60) -> AcceptanceEstimate:
    expectation = AcceptanceEstimate(AcceptanceEstimate())
    for _ in range(rounds):
        expectation.update(drafted, accepted)
    return expectation


def some(*expectations: AcceptanceEstimate, limit: int = 8) -> list[Candidate]:
    return [Candidate(expectation, limit) for expectation in expectations]


def test_asks_as_deep_as_drafts_hold() -> None:
    deep, shallow, hopeless = learnt(8), learnt(2), learnt(0)
    asked = ask(some(deep, shallow, hopeless), MEASURED, drafter(0.001))
    assert asked[0] == 8
    assert asked[1] == 2
    assert asked[2] == 0


def test_asks_nothing_of_a_drafter_too_slow_to_pay() -> None:
    fair = learnt(1)
    assert ask(some(fair), MEASURED, drafter(0.001))[0] > 0
    assert ask(some(fair), MEASURED, drafter(0.100)) == [0]
    assert ask(some(fair), MEASURED, drafter(0.100), busy_s=10.0)[0] > 0, "hidden behind other work"
    assert ask(some(fair), MEASURED, drafter(0.100), busy_s=10.0, share=1.0) == [0], "on the same cores"


def test_prompts_are_read_beside_drafting_or_with_the_drafts_whichever_is_sooner() -> None:
    better, slow = learnt(2), drafter(0.120)
    prompts = {"prompt_rows": 1000, "prompts_s": MEASURED.seconds(1000)}
    assert ask(some(better), MEASURED, slow) == [0]
    assert ask(some(better), MEASURED, slow, **prompts)[0] > 0, "drafted by the time that the prompts are read"
    assert ask(some(better), MEASURED, slow, **prompts, share=1.0) == [0], "which drafting on the same cores delays"
    assert ask(some(better), MEASURED, drafter(0.001), **prompts)[0] > 0, "prompts wait for drafts that come at once"


def test_a_row_beside_prompts_costs_what_it_adds_to_their_step() -> None:
    """Sixteen rows are free alone; beside a prompt each takes as long as one of the prompt's."""
    bent = StepCosts({1: 0.030, 16: 0.030, 116: 0.230})
    assert ask(some(learnt(1)), bent, drafter(0.001))[0] > 0
    assert ask(some(learnt(0)), bent, drafter(0.0001), prompt_rows=64) == [0]
    assert ask(some(learnt(1)), bent, drafter(0.010), prompt_rows=64) == [0], "plain tokens take a row's time, too"


def test_limits_hold_and_no_candidates_ask_for_nothing() -> None:
    assert ask([Candidate(learnt(8), 3), Candidate(learnt(8), 0)], MEASURED, drafter(0.0001)) == [3, 0]
    assert ask([], MEASURED, drafter(0.001)) == []


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=3),
    st.floats(0, 0.05),
    st.floats(0, 0.2),
    st.floats(0, 1),
)
def test_requested_drafts_are_expected_to_be_faster_than_none(
    sequences: list[tuple[int, int]], step_s: float, busy_s: float, share: float
) -> None:
    expectations = [learnt(accepted, drafted=4) for accepted, _ in sequences]
    costs = drafter(step_s)
    candidates = [Candidate(e, limit) for e, (_, limit) in zip(expectations, sequences, strict=True)]
    asked = ask(candidates, MEASURED, costs, busy_s=busy_s, share=share)
    draft_s = costs.seconds(sum(k > 0 for k in asked), max(asked))
    exposed_s = draft_s - min(draft_s, busy_s) * (1 - share)
    tokens = len(asked) + sum(sum(e.survival(k)) for e, k in zip(expectations, asked, strict=True))
    pace = tokens / (MEASURED.seconds(len(asked) + sum(asked)) + exposed_s)
    plain = len(asked) / MEASURED.seconds(len(asked))
    assert pace >= plain * (MIN_GAIN if any(asked) else 1.0) * (1 - 1e-9)


def test_lengths_of_64_sequences_take_few_lines() -> None:
    candidates, costs = some(*(learnt(i % 9) for i in range(64))), drafter(0.003)
    assert lines_run(lambda: ask(candidates, MEASURED, costs)) < 40_000, "milliseconds"


def test_unread_tokens_are_worth_reading_for_a_long_answer_only() -> None:
    unread = Candidate(learnt(4), 8, read_s=0.6)
    assert ask([unread], MEASURED, drafter(0.001))[0] > 0
    assert ask([replace(unread, remaining=4)], MEASURED, drafter(0.001)) == [0]
    assert ask([replace(unread, read_s=0.0, remaining=4)], MEASURED, drafter(0.001))[0] > 0
    assert ask([replace(unread, read_s=100.0)], MEASURED, drafter(0.001)) == [0]
    assert ask([replace(unread, remaining=10**6)], MEASURED, drafter(0.001)) == ask([unread], MEASURED, drafter(0.001))
    assert unread.horizon == HORIZON_TOKENS // 2


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=6))
def test_waiting_as_long_as_drafts_are_worth_equals_plain_decoding(sequences: list[tuple[int, int]]) -> None:
    candidates = some(*(learnt(accepted) for accepted, _ in sequences))
    depths = [depth for _, depth in sequences]
    worth = worth_s(candidates, depths, MEASURED)
    expected = sum(sum(c.expectation.survival(d)) for c, d in zip(candidates, depths, strict=True))
    plain = len(candidates) / MEASURED.seconds(len(candidates))
    verify_s = MEASURED.seconds(len(candidates) + sum(depths))
    pace = (len(candidates) + expected) / (verify_s + worth)
    assert pace == pytest.approx(plain)
    assert worth_s(candidates, depths, MEASURED, gain=1.5) < worth, "another way is faster than plain decoding"


def test_waiting_for_nothing_is_worth_nothing() -> None:
    assert worth_s([], [], MEASURED) == worth_s(some(learnt(8)), [0], MEASURED) == 0.0


def test_the_gain_is_the_pace_over_that_without_drafts():
    depths, gain = decide(some(learnt(8)), MEASURED, drafter(0.001))
    assert depths[0] > 0 and gain > MIN_GAIN
    assert decide(some(learnt(0)), MEASURED, drafter(0.001)) == ([0], 1.0)


def test_a_long_context_asks_for_less() -> None:
    """Every row reads the whole context."""
    costs = StepCosts({1: 0.020, 64: 0.083}, reading=Reading(1e-6, 2e-6))
    short, long = (Candidate(learnt(3), 8, context=context) for context in (50, 6000))
    assert ask([short], costs, drafter(0.0005)) == [3]
    assert ask([short, long], costs, drafter(0.0005)) == [3, 0]

"""Test how many draft tokens are requested, and when a probe is worth its cost."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from app.engine.step_costs import Reading, StepCosts
from app.messages import LEAST_SURVIVAL
from app.speculation.acceptance import FIRST_PROBE_ROUNDS, MAX_PROBE_ROUNDS, AcceptanceEstimate
from app.speculation.draft_costs import DraftCosts
from app.speculation.marginal import (
    HORIZON_TOKENS,
    LEAST_ENOUGH,
    MIN_GAIN,
    Candidate,
    DraftPrice,
    draft_lengths,
    least_survival,
    probe,
    skip_models_above,
    worth_s,
)
from tests.steps import lines_run

MEASURED = StepCosts({1: 0.045, 2: 0.052, 4: 0.057, 8: 0.066, 16: 0.083, 32: 0.115})


def decide(candidates: list[Candidate], costs: StepCosts, drafts: DraftCosts, beat: float = 1.0, **work):
    return draft_lengths(candidates, costs, DraftPrice(drafts, **work), beat)


def ask(*words, **rest) -> list[int]:
    return decide(*words, **rest)[0]


def learnt(accepted: int, drafted: int = 8, rounds: int = 60) -> AcceptanceEstimate:
    expectation = AcceptanceEstimate(AcceptanceEstimate())
    for _ in range(rounds):
        expectation.update(drafted, accepted)
    return expectation


def some(*expectations: AcceptanceEstimate, limit: int = 8) -> list[Candidate]:
    return [Candidate(expectation, limit) for expectation in expectations]


def drafter(step_s: float, hop_s: float = 0.001) -> DraftCosts:
    costs = DraftCosts(hop_s)
    for _ in range(50):
        for batch in (1, 4, 16, 64):
            for depth in (1, 4, 8):
                costs.update(batch, depth, hop_s + step_s * depth)
    return costs


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


def test_a_round_with_drafts_that_prompts_go_before_must_gain_what_they_take() -> None:
    """While drafts are waited for the verifier reads prompts alone; without drafts its steps do both."""
    fair, deep = learnt(1), learnt(8)
    prompts = {"beside_s": 0.200, "between_s": 0.245}
    assert ask(some(fair), MEASURED, drafter(0.001))[0] > 0
    assert ask(some(fair), MEASURED, drafter(0.001), **prompts) == [0], "two tokens a round, and it takes twice as long"
    assert ask(some(deep), MEASURED, drafter(0.001), **prompts) == [8]
    better, slow = learnt(2), drafter(0.120)
    assert ask(some(fair), MEASURED, drafter(0.001), beside_s=0.200)[0] > 0, "drafts that are not waited for"
    assert ask(some(better), MEASURED, slow, **prompts)[0] > 0, "drafted by the time that the prompts are read"
    assert ask(some(better), MEASURED, slow, **prompts, share=1.0) == [0], "which drafting on the same cores delays"


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


def test_a_silent_sequence_must_gain_more_to_begin_again() -> None:
    slope = StepCosts({1: 1.0, 2: 1.6})
    expectation = learnt(0, drafted=1)
    expectation.update(1, 1)
    gain = 1 + expectation.survival(1)[0]
    even = StepCosts({1: 1.0, 2: gain * 0.999 / MIN_GAIN})
    free = DraftCosts(hop_s=0.0)
    assert ask(some(expectation, limit=1), even, free) == [1]
    expectation.silent_rounds = 1
    assert ask(some(expectation, limit=1), even, free) == [0]
    assert ask(some(learnt(1), limit=1), slope, free) == [1]


def run_rounds(expectation: AcceptanceEstimate, rounds: int, accepted: int, costs: DraftCosts) -> list[int]:
    """Return the draft tokens of each round; a probe's are negative."""
    history = []
    for _ in range(rounds):
        candidates = some(expectation)
        (asked,) = ask(candidates, MEASURED, costs)
        (is_probe,) = probe(candidates, [asked], MEASURED, costs, share=1.0)
        drafted = asked or int(is_probe)
        expectation.record_asked(drafted, is_probe)
        expectation.update(drafted, min(drafted, accepted))
        history.append(-drafted if is_probe else drafted)
    return history


def test_probes_are_rare_where_drafts_never_pay_and_find_when_they_do() -> None:
    expectation, costs = learnt(0), drafter(0.003)
    hopeless = run_rounds(expectation, 1000, 0, costs)
    assert set(hopeless) == {0, -1}
    assert hopeless.count(-1) < 15
    recovered = run_rounds(expectation, 2 * MAX_PROBE_ROUNDS, 8, costs)
    assert recovered[-1] == 8


def test_lengths_of_64_sequences_take_few_lines() -> None:
    candidates, costs = some(*(learnt(i % 9) for i in range(64))), drafter(0.003)
    assert lines_run(lambda: ask(candidates, MEASURED, costs)) < 40_000, "milliseconds"


def probing(rounds: int = FIRST_PROBE_ROUNDS) -> AcceptanceEstimate:
    expectation = learnt(0)
    expectation.silent_rounds = rounds
    assert expectation.is_probing
    return expectation


def test_a_probe_is_made_where_it_may_be_worth_its_price() -> None:
    def probed(candidate: Candidate, costs: DraftCosts, share: float = 1.0, asked: int = 0) -> bool:
        (found,) = probe([candidate], [asked], MEASURED, costs, share)
        return found

    (one,) = some(probing())
    assert probed(one, drafter(0.003))
    assert not probed(one, drafter(0.003), asked=3), "it asks anyway"
    assert not probed(replace(one, limit=0), drafter(0.003)), "no drafter may draft for it"
    assert not probed(replace(one, expectation=learnt(0)), drafter(0.003)), "it asked a moment ago"
    assert not probed(one, drafter(1.0)), "the drafter is too slow for any gain"
    assert probed(one, drafter(0.008))
    assert not probed(replace(one, remaining=3), drafter(0.008)), "too few tokens to come for it to pay"
    assert not probed(replace(one, read_s=0.5), drafter(0.003)), "the drafter would have to read it first,"
    assert probed(replace(one, read_s=0.5), drafter(0.003), share=0.0), "which costs nothing on another machine"


def test_no_probe_is_made_where_the_best_drafts_gain_nothing() -> None:
    saturated = StepCosts({1: 0.01, 1000: 10.0})
    candidates = some(*(probing() for _ in range(16)))
    assert ask(candidates, saturated, drafter(0.003)) == [0] * 16
    assert probe(candidates, [0] * 16, saturated, drafter(0.003), 1.0) == [False] * 16


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
    assert worth >= 0.0
    assert pace <= plain * (1 + 1e-9), "a wait any longer would be slower than plain decoding"
    if worth > 0.0:
        assert pace >= plain * (1 - 1e-9), "any shorter would be faster"


def test_waiting_for_nothing_is_worth_nothing() -> None:
    assert worth_s([], [], MEASURED) == worth_s(some(learnt(8)), [0], MEASURED) == 0.0


def test_a_model_is_skipped_the_sooner_the_more_its_steps_cost():
    def above(full, model_free, round_s, model_s):
        return skip_models_above([full], [model_free], round_s, model_s)

    assert above(0.8, 0.5, 0.03, 0.0) == 1.0, "what costs nothing is always worth taking"
    assert above(0.8, 0.5, 0.1, 0.001) > above(0.8, 0.5, 0.1, 0.004) > above(0.8, 0.5, 0.1, 0.01)
    assert above(0.8, 0.2, 0.1, 0.01) > above(0.8, 0.6, 0.1, 0.01), "the more models add, the rather"
    assert above(0.8, 0.5, 1.0, 0.004) > 0.95, "a large target's tokens are worth a drafter's time"
    assert above(0.0, 0.0, 0.03, 0.004) == above(0.8, 0.5, 0.03, 1.0) == LEAST_ENOUGH, (
        "where model-free drafters know nothing models are run"
    )


def test_the_gain_is_the_pace_over_that_without_drafts():
    depths, gain = decide(some(learnt(8)), MEASURED, drafter(0.001))
    assert depths[0] > 0 and gain > MIN_GAIN
    assert decide(some(learnt(0)), MEASURED, drafter(0.001)) == ([0], 1.0)


@settings(max_examples=50)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=9), st.floats(0, 0.02), st.floats(1, 2))
def test_lengths_that_gain_more_than_the_other_mode_are_found(accepted: list[int], step_s: float, beat: float) -> None:
    candidates = some(*(learnt(n, drafted=4) for n in accepted))
    found = decide(candidates, MEASURED, drafter(step_s))
    assert decide(candidates, MEASURED, drafter(step_s), beat=beat) in (found, ([0] * len(accepted), 1.0))
    assert found[1] <= beat or decide(candidates, MEASURED, drafter(step_s), beat=beat) == found


def test_a_mode_that_cannot_gain_as_much_as_the_other_is_not_searched() -> None:
    candidates = some(learnt(1), learnt(2))
    gain = decide(candidates, MEASURED, drafter(0.001))[1]
    assert decide(candidates, MEASURED, drafter(0.001), beat=2 * gain) == ([0, 0], 1.0)


def test_a_long_context_asks_for_less() -> None:
    """Every row reads the whole context."""
    costs = StepCosts({1: 0.020, 64: 0.083}, reading=Reading(1e-6, 2e-6))
    short, long = (Candidate(learnt(3), 8, context=context) for context in (50, 6000))
    assert ask([short], costs, drafter(0.0005)) == [3]
    assert ask([short, long], costs, drafter(0.0005)) == [3, 0]


LINEAR = StepCosts({1: 0.030, 2: 0.0301, 64: 0.0363})


def even(candidates: list[Candidate], depths: list[int], drafts: DraftCosts, exposed_s: float = 1.0) -> float:
    """Return the chance at which one more token leaves the pace as it is, rows and drafting shared alike."""
    expected = len(candidates) + sum(sum(c.expectation.survival(n)) for c, n in zip(candidates, depths, strict=True))
    asked, rows = sum(map(bool, depths)), len(candidates) + sum(depths)
    round_s = LINEAR.seconds(rows) + exposed_s * drafts.seconds(asked, max(depths))
    token_s = drafts.seconds(asked, max(depths) + 1) - drafts.seconds(asked, max(depths))
    return expected / round_s * (LINEAR.seconds(rows + 1) - LINEAR.seconds(rows) + exposed_s * token_s / asked)


@pytest.mark.parametrize("depths", [[3, 2, 0], [1, 4, 4], [2, 0, 0]])
def test_the_least_survival_is_where_one_more_token_neither_gains_nor_loses(depths: list[int]) -> None:
    drafts, candidates = drafter(0.0005), some(learnt(3), learnt(2), learnt(1))
    least = least_survival(candidates, depths, LINEAR, DraftPrice(drafts))
    assert least == pytest.approx(even(candidates, depths, drafts), rel=0.02)
    hidden = least_survival(candidates, depths, LINEAR, DraftPrice(drafts, busy_s=1.0, share=0.25))
    assert hidden == pytest.approx(even(candidates, depths, drafts, 0.25), rel=0.02) and hidden < least
    between = least_survival(candidates, depths, LINEAR, DraftPrice(drafts, between_s=1.0))
    assert between < hidden, "the verifier reads prompts meanwhile in any case"
    long = [replace(c, context=8000) for c in candidates]
    costs = StepCosts({1: 0.030, 2: 0.0301, 64: 0.0363}, reading=Reading(1e-8, 1e-8))
    assert least_survival(long, depths, costs, DraftPrice(drafts)) > least, "each row reads the context"


def test_drafters_stop_the_sooner_the_more_their_tokens_and_rows_cost() -> None:
    candidates, depths = some(learnt(3)), [3]
    found = [
        least_survival(candidates, depths, LINEAR, DraftPrice(drafter(step_s)))
        for step_s in (0.0001, 0.0004, 0.0008, 0.1)
    ]
    assert found[0] < found[1] < found[2] < found[3] == LEAST_SURVIVAL
    assert least_survival(candidates, depths, MEASURED, DraftPrice(drafter(0.001))) > found[1], "rows that cost more"
    assert least_survival(candidates, depths, LINEAR, DraftPrice(DraftCosts())) == LEAST_SURVIVAL, "nothing is known"
    assert least_survival(candidates, [0], LINEAR, DraftPrice(drafter(0.001))) == LEAST_SURVIVAL

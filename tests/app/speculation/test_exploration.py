"""Test when models draft without being expected to pay."""

from app.speculation.exploration import (
    EVERY,
    FIRST_ROUNDS,
    FIRST_WAITS,
    LATEST,
    MIN_WAIT_S,
    TRIAL_ROUNDS,
    TRIAL_SHARE,
    Exploration,
)


def run(one: Exploration, rounds: int, loss_s: float, *, pays: bool = True) -> list[int]:
    """Let models draft in no round but those that are due; return these."""
    due = []
    for i in range(rounds):
        is_due = one.is_due(loss_s, pays=pays)
        one.record(1.0, has_models=is_due, is_trial=is_due)
        due += [i] * is_due
    return due


def test_models_draft_in_the_first_rounds_then_in_a_few_of_many() -> None:
    due = run(Exploration(), FIRST_ROUNDS + 2 * (EVERY + TRIAL_ROUNDS), loss_s=0.0)
    first = FIRST_ROUNDS + EVERY
    second = first + TRIAL_ROUNDS + EVERY
    assert due == [*range(FIRST_ROUNDS), first, first + 1, second, second + 1]


def test_trials_take_at_most_their_share_of_the_time() -> None:
    rounds, loss_s = 20 * LATEST, 5.0
    trials = len(run(Exploration(), rounds, loss_s)) - FIRST_ROUNDS
    assert 0 < trials / TRIAL_ROUNDS * loss_s <= TRIAL_SHARE * rounds


def test_a_cost_that_was_measured_wrong_does_not_end_all_trials() -> None:
    assert len(run(Exploration(), FIRST_ROUNDS + LATEST + TRIAL_ROUNDS, 1e9)) == FIRST_ROUNDS + TRIAL_ROUNDS


def test_models_that_pay_by_themselves_need_no_trial() -> None:
    one = Exploration()
    for _ in range(9 * EVERY):
        one.record(1.0, has_models=True, is_trial=False)
    assert not one.is_due(0.0, pays=True)


def test_the_first_waits_grow() -> None:
    one = Exploration()
    waits = [one.first_wait_s() for _ in range(FIRST_WAITS + 1)]
    assert waits == [*(MIN_WAIT_S * 2**i for i in range(FIRST_WAITS)), 0.0]


def test_models_that_do_not_pay_have_no_first_rounds() -> None:
    assert run(Exploration(), EVERY + TRIAL_ROUNDS, loss_s=0.0, pays=False) == [EVERY, EVERY + 1]

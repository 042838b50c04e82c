"""Test what the guard learns of ways to draft, and when it lets one be tried."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.speculation.guard import BELIEVED, FIRST_SHARE, MOST, SHARE, TRIAL_ROUNDS, Guard, Way

ROUND_S = 0.030


def run(guard: Guard, way: Way, took_s: float, now_s: float = 0.0, *, rounds: int = 1, is_trial: bool = False) -> float:
    """Run rounds of one request on end; return when they end."""
    for _ in range(rounds):
        guard.begin(way, ["r"], ROUND_S, now_s, is_trial=is_trial)
        now_s += took_s
        guard.end(["r"], now_s)
    return now_s


def test_a_way_is_believed_before_it_is_seen_and_less_with_each_round() -> None:
    guard, now_s, seen = Guard(), 0.0, []
    for _ in range(200):
        seen.append(guard.slowdown(Way.MODELS))
        now_s = run(guard, Way.MODELS, 2.0 * ROUND_S, now_s)
    assert seen[:2] == [1.0, 1.0], "the first round shows nothing: drafters catch up"
    assert seen[2] == pytest.approx((BELIEVED + 2.0) / (BELIEVED + 1.0))
    assert seen == sorted(seen) and 1.8 < seen[-1] < 2.0
    assert guard.slowdown(Way.PLAIN) == 1.0


def test_what_prompts_take_anyway_is_no_part_of_a_round() -> None:
    guard, now_s = Guard(), 0.0
    for _ in range(9):
        guard.begin(Way.MODELS, ["r"], ROUND_S, now_s, is_trial=False)
        guard.add_prompts(0.5)
        now_s += 0.5 + ROUND_S
        guard.end(["r"], now_s)
    assert guard.slowdown(Way.MODELS) == pytest.approx(1.0)


def test_a_pause_of_the_machine_moves_little() -> None:
    guard, paused = Guard(), Guard()
    for one, last_s in ((guard, MOST * ROUND_S), (paused, 3600.0)):
        run(one, Way.MODELS, last_s, run(one, Way.MODELS, ROUND_S, rounds=50))
    assert paused.slowdown(Way.MODELS) == guard.slowdown(Way.MODELS) < 1.1


def test_requests_that_wait_for_others_begin_no_round_of_their_own() -> None:
    guard = Guard()
    guard.begin(Way.MODELS, ["a", "b"], ROUND_S, 0.0, is_trial=False)
    guard.begin(Way.PLAIN, ["new"], ROUND_S, 0.01, is_trial=False)
    assert guard.size == 2
    guard.end(["new"], 0.02)
    assert guard.size == 2
    guard.remove("a")
    guard.remove("b")
    assert guard.size == 0, "nobody is left whose verdict would end it"


def test_an_idle_time_is_no_part_of_a_round() -> None:
    guard = Guard()
    now_s = run(guard, Way.MODELS, ROUND_S, rounds=2)
    for request in ("s", "t"):
        now_s += 3600.0
        guard.begin(Way.MODELS, [request], ROUND_S, now_s, is_trial=False)
        guard.end([request], now_s := now_s + ROUND_S)
    guard.stop()
    run(guard, Way.MODELS, ROUND_S, now_s + 60.0)
    assert guard.slowdown(Way.MODELS) == pytest.approx(1.0)


def test_a_trial_lasts_its_rounds_and_a_step_that_failed_ends_a_round() -> None:
    guard = Guard()
    now_s = run(guard, Way.PLAIN, ROUND_S, rounds=1000)
    tried = []
    for _ in range(9):
        tried.append(is_trial := guard.is_due(Way.MODELS, loss_s=0.29))
        now_s = run(guard, Way.MODELS if is_trial else Way.PLAIN, ROUND_S, now_s, is_trial=is_trial)
    assert tried == [True] * TRIAL_ROUNDS + [False] * (9 - TRIAL_ROUNDS)
    guard.begin(Way.MODELS, ["r"], ROUND_S, now_s, is_trial=False)
    guard.stop()
    assert guard.size == 0


@given(loss_s=st.floats(0.001, 3.0), change=st.integers(0, 3000))
def test_trials_lose_no_more_than_their_share_of_the_time(loss_s: float, change: int) -> None:
    """The first trial under a load may cost more."""
    guard, now_s, rounds, lost = Guard(), 0.0, 6000, [0.0, 0.0]
    guard.follow(4)
    for number in range(rounds):
        if number == change:
            guard.follow(9)
        is_trial = guard.is_due(Way.MODELS, loss_s)
        lost[number >= change] += loss_s / TRIAL_ROUNDS * is_trial
        now_s = run(guard, Way.MODELS if is_trial else Way.PLAIN, ROUND_S, now_s, is_trial=is_trial)
    for own, part in zip(lost, (change, rounds - change), strict=True):
        first = FIRST_SHARE + FIRST_SHARE / 4.0  # the first trials' shares; then SHARE
        assert own <= (first + SHARE) * now_s and own <= FIRST_SHARE * part * ROUND_S + 2.0 * loss_s


def test_a_load_that_was_there_before_brings_no_dear_trials() -> None:
    guard, first = Guard(), FIRST_SHARE * 100 * ROUND_S
    guard.follow(16)
    now_s = run(guard, Way.PLAIN, ROUND_S, rounds=100)
    now_s = run(guard, Way.MODELS, ROUND_S, now_s, is_trial=True, rounds=TRIAL_ROUNDS)
    run(guard, Way.PLAIN, ROUND_S, now_s, rounds=100)
    found = []
    for load in (16, 31, 15, 32, 16):
        guard.follow(load)
        found.append(guard.is_due(Way.MODELS, first))
    assert found == [False, False, True, True, False]

"""The marginal-gain rule of app/stages/schedule.py: how much to verify (cut) and to ask for (ask)."""

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.costs import CostTable, DraftCosts
from app.expectation import MAX_PROBE_ROUNDS, Expectation
from app.stages.schedule import PROBE_TOKENS, ask, cut
from app.state import Tree

MEASURED = CostTable({1: 0.045, 2: 0.052, 4: 0.057, 8: 0.066, 16: 0.083, 32: 0.115})
FLAT = CostTable({1: 1.0, 1000: 1.0})

falling = st.lists(st.floats(0, 1), max_size=5).map(lambda s: sorted(s, reverse=True))
steps = st.lists(st.floats(0.01, 1.0), min_size=1, max_size=8).map(
    lambda ms: CostTable({i + 1: sum(ms[: i + 1]) for i in range(len(ms))})
)


def chain(survival: list[float]) -> Tree:
    return Tree(list(range(len(survival))), list(range(len(survival))), survival, [("a",)] * len(survival))


@given(st.lists(falling, max_size=4), st.integers(0, 6), steps, st.integers(0, 20))
def test_cut_is_the_best_of_all_choices(
    survivals: list[list[float]], extra: int, costs: CostTable, max_rows: int
) -> None:
    trees, base = [chain(s) for s in survivals], len(survivals) + extra
    kept = cut(trees, base, costs, max_rows)

    def pace(survival: list[float]) -> float:
        return (len(trees) + sum(survival)) / costs.seconds(base + len(survival))

    every = sorted((s for tree in trees for s in tree.survival), reverse=True)
    room = max(0, max_rows - base)
    best = max(pace(every[:n]) for n in range(min(room, len(every)) + 1))
    chosen = [s for tree, n in zip(trees, kept, strict=True) for s in tree.survival[:n]]
    assert len(chosen) <= room
    assert pace(chosen) == pytest.approx(best)


def test_cut_looks_past_a_step_in_the_cost() -> None:
    stairs = CostTable({1: 1.0, 2: 2.0, 8: 2.0})
    assert cut([chain([0.9])], 1, stairs, 8) == [0]
    assert cut([chain([0.9, 0.8, 0.7])], 1, stairs, 8) == [3]


def test_cut_takes_nothing_that_does_not_pay() -> None:
    assert cut([chain([0.02, 0.01])], 1, MEASURED, 64) == [0]
    assert cut([chain([0.9, 0.8]), chain([0.01])], 2, MEASURED, 64) == [2, 0]
    assert cut([], 0, MEASURED, 64) == []


def test_cut_breaks_ties_by_place() -> None:
    assert cut([chain([0.5, 0.5]), chain([0.5])], 2, FLAT, 4) == [2, 0]


def test_cut_never_takes_a_child_without_its_parent() -> None:
    broken = chain([0.1, 0.9])  # breaks the contract of a tree
    assert cut([broken, chain([0.5])], 2, FLAT, 3) == [0, 1]


def test_other_sequences_in_the_step_make_a_node_dearer() -> None:
    slope = CostTable({1: 1.0, 11: 2.0})
    assert cut([chain([0.15])], 1, slope, 64) == [1]
    assert cut([chain([0.15])], 1, slope, 64, other_sequences=9) == [0]


def test_cutting_64_trees_of_16_nodes_takes_about_a_millisecond() -> None:
    rng, best = random.Random(0), 1.0
    trees = [chain(sorted((rng.random() for _ in range(16)), reverse=True)) for _ in range(64)]
    for _ in range(20):
        start = time.perf_counter()
        cut(trees, 64, MEASURED, 4096)
        best = min(best, time.perf_counter() - start)
    assert best < 0.004


def learnt(accepted: int, offered: int = 8, rounds: int = 60) -> Expectation:
    expectation = Expectation(Expectation())
    for _ in range(rounds):
        expectation.observe(offered, accepted)
    return expectation


def drafter(step_s: float, hop_s: float = 0.001) -> DraftCosts:
    costs = DraftCosts(hop_s)
    for _ in range(50):
        for batch in (1, 4, 16, 64):
            for depth in (1, 4, 8):
                costs.observe(batch, depth, hop_s + step_s * depth)
    return costs


def test_asks_as_deep_as_drafts_hold() -> None:
    deep, shallow, hopeless = learnt(8), learnt(2), learnt(0)
    asked = ask([deep, shallow, hopeless], [8, 8, 8], MEASURED, drafter(0.001))
    assert asked[0] == 8
    assert asked[1] == 2
    assert asked[2] == 0


def test_asks_nothing_of_a_drafter_too_slow_to_pay() -> None:
    fair = learnt(1)
    assert ask([fair], [8], MEASURED, drafter(0.001))[0] > 0
    assert ask([fair], [8], MEASURED, drafter(0.100)) == [0]
    assert ask([fair], [8], MEASURED, drafter(0.100), busy_s=10.0)[0] > 0, "hidden behind other work"
    assert ask([fair], [8], MEASURED, drafter(0.100), busy_s=10.0, share=1.0) == [0], "on the same cores"


def test_limits_are_kept_and_nothing_is_asked_for_nobody() -> None:
    assert ask([learnt(8), learnt(8)], [3, 0], MEASURED, drafter(0.0001)) == [3, 0]
    assert ask([], [], MEASURED, drafter(0.001)) == []


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=3),
    st.floats(0, 0.05),
    st.floats(0, 0.2),
    st.floats(0, 1),
)
def test_what_is_asked_is_expected_to_be_at_least_as_fast_as_asking_nothing(
    sequences: list[tuple[int, int]], step_s: float, busy_s: float, share: float
) -> None:
    expectations = [learnt(accepted, offered=4) for accepted, _ in sequences]
    costs = drafter(step_s)
    asked = ask(expectations, [limit for _, limit in sequences], MEASURED, costs, busy_s=busy_s, share=share)
    draft_s = costs.seconds(sum(k > 0 for k in asked), max(asked))
    exposed_s = draft_s - min(draft_s, busy_s) * (1 - share)
    tokens = len(asked) + sum(sum(e.survival(k)) for e, k in zip(expectations, asked, strict=True))
    pace = tokens / (MEASURED.seconds(len(asked) + sum(asked)) + exposed_s)
    assert pace >= len(asked) / MEASURED.seconds(len(asked)) * (1 - 1e-9)


def test_a_silent_sequence_must_gain_more_to_begin_again() -> None:
    slope = CostTable({1: 1.0, 2: 1.6})
    expectation = learnt(0, offered=1)
    expectation.observe(1, 1)
    gain = 1 + expectation.survival(1)[0]
    even = CostTable({1: 1.0, 2: gain * 0.999})
    free = DraftCosts(hop_s=0.0)
    assert ask([expectation], [1], even, free) == [1]
    expectation.silent_rounds = 1
    assert ask([expectation], [1], even, free) == [0]
    assert ask([learnt(1)], [1], slope, free) == [1]


def run_rounds(expectation: Expectation, rounds: int, accepted: int, costs: DraftCosts) -> list[int]:
    history = []
    for _ in range(rounds):
        (asked,) = ask([expectation], [8], MEASURED, costs)
        expectation.asked(asked)
        expectation.observe(asked, min(asked, accepted))
        history.append(asked)
    return history


def test_probing_is_rare_where_it_never_pays_and_recovers_where_it_does_again() -> None:
    expectation, costs = learnt(0), drafter(0.003)
    hopeless = run_rounds(expectation, 1000, 0, costs)
    assert set(hopeless) == {0, PROBE_TOKENS}
    assert hopeless.count(PROBE_TOKENS) < 15
    recovered = run_rounds(expectation, 2 * MAX_PROBE_ROUNDS, 8, costs)
    assert recovered[-1] == 8


def test_asking_for_64_sequences_takes_milliseconds() -> None:
    expectations, costs, best = [learnt(i % 9) for i in range(64)], drafter(0.003), 1.0
    for _ in range(5):
        start = time.perf_counter()
        ask(expectations, [8] * 64, MEASURED, costs)
        best = min(best, time.perf_counter() - start)
    assert best < 0.02

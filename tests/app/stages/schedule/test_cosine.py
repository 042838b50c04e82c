"""Test CoSine's batch: the objective's minimum over windows by length, within its bounds."""

from hypothesis import given
from hypothesis import strategies as st

from app.estimates.step_costs import StepCosts
from app.stages.schedule.cosine import Objective, Pooled, choose

COSTS = StepCosts({1: 0.045, 2: 0.052, 4: 0.057, 8: 0.066, 16: 0.083, 32: 0.115})
STEEP = StepCosts({1: 0.01, 2: 0.03, 3: 0.09, 4: 0.27})


def no_drafting(batch: int, depth: int) -> float:
    return 0.0


def pooled(length: int, candidates: int = 0, rows: int = 1, since_s: float = 0.0) -> Pooled:
    return Pooled(length, rows, candidates, since_s)


pools = st.lists(
    st.builds(
        Pooled,
        length=st.integers(1, 2000),
        rows=st.integers(1, 4),
        candidates=st.integers(0, 20),
        since_s=st.floats(0, 10),
    ),
    min_size=1,
    max_size=8,
)
objectives = st.builds(
    Objective,
    token_weight_s=st.sampled_from([0.0, 1e-4, 0.1]),
    max_s=st.floats(0.03, 1.0),
    max_candidates=st.integers(0, 40),
)


@given(pools, objectives, st.integers(0, 30))
def test_caps_hold_and_the_longest_waiting_is_in(pool: list[Pooled], objective: Objective, spare_rows: int) -> None:
    max_rows = sum(one.rows for one in pool) + spare_rows
    chosen = choose(pool, COSTS, no_drafting, max_rows, objective)
    assert len(chosen) == len(pool)
    batch = {i: kept for i, kept in enumerate(chosen) if kept is not None}
    assert min(range(len(pool)), key=lambda i: pool[i].since_s) in batch
    assert all(0 <= kept <= pool[i].candidates for i, kept in batch.items())
    total = sum(batch.values())
    assert total <= objective.max_candidates
    rows = total + sum(pool[i].rows for i in batch)
    assert rows <= max_rows
    assert COSTS.seconds(rows) <= objective.max_s or len(batch) == 1
    lengths = sorted(one.length for one in pool)
    inside = sorted(pool[i].length for i in batch)
    start = lengths.index(inside[0])
    assert any(lengths[first : first + len(inside)] == inside for first in range(start, len(lengths))), "a window"


@given(pools, objectives)
def test_no_window_around_the_longest_waiting_does_better(pool: list[Pooled], objective: Objective) -> None:
    """Compare with all windows, each with its candidates shrunk here."""
    max_rows = 200
    chosen = choose(pool, COSTS, no_drafting, max_rows, objective)
    batch = {i: kept for i, kept in enumerate(chosen) if kept is not None}
    order = sorted(range(len(pool)), key=lambda i: (pool[i].length, i))
    oldest = min(range(len(pool)), key=lambda i: pool[i].since_s)

    def value(kept: dict[int, int]) -> float:
        rows = sum(kept.values()) + sum(pool[i].rows for i in kept)
        return objective.value(COSTS.seconds(rows), len(kept), sum(kept.values()))

    for first in range(len(order)):
        for end in range(first + 1, len(order) + 1):
            window = order[first:end]
            kept = {i: pool[i].candidates for i in window}
            while sum(kept.values()) > objective.max_candidates:
                kept[max(kept, key=lambda i: kept[i])] -= 1
            rows = sum(kept.values()) + sum(pool[i].rows for i in kept)
            if oldest in window and COSTS.seconds(rows) <= objective.max_s:
                assert value(batch) <= value(kept) + 1e-12


def test_the_largest_candidate_list_shrinks_first() -> None:
    chosen = choose([pooled(5, 3), pooled(5, 9), pooled(5, 4)], COSTS, no_drafting, 100, Objective(0.0, 9.0, 10))
    assert chosen == [3, 3, 4]


def test_a_step_that_costs_more_than_it_shares_is_not_filled() -> None:
    pool = [pooled(10), pooled(11), pooled(500)]
    assert choose(pool, STEEP, no_drafting, 100) == [0, None, None]
    assert choose(pool, COSTS, no_drafting, 100) == [0, 0, 0]


def test_a_slow_drafter_makes_room_for_more() -> None:
    """The longer of drafting and verifying counts, so all share the drafting time."""
    assert choose([pooled(10), pooled(11)], STEEP, lambda batch, depth: 0.2, 100) == [0, 0]


def test_an_empty_pool_is_an_empty_batch() -> None:
    assert choose([], COSTS, no_drafting, 10) == []

"""Test CoSine's batch: the objective's minimum over windows by length and candidates, within its bounds."""

from itertools import product
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.kv.sizing import PAGE_TOKENS
from app.engine.step_costs import Reading, StepCosts
from app.plans import Objective
from app.scheduler.cosine import BatchPrice, CosineSelection, Pooled, choose
from app.scheduler.tree_budget import BatchRows
from app.state import CachedSequence, Sequence, Tree
from tests.fakes import record

POINTS = {1: 0.045, 2: 0.052, 4: 0.057, 8: 0.066, 16: 0.083, 32: 0.115}
COSTS, BY_CONTEXT = StepCosts(POINTS, reading=Reading(1e-6, 1e-6)), StepCosts(POINTS, reading=Reading(1e-6))
FLAT, STEEP = StepCosts({1: 0.03, 64: 0.033}), StepCosts({1: 0.01, 2: 0.03, 3: 0.09, 4: 0.27})
UNBOUNDED = Objective(max_s=inf, max_candidates=1000)


def no_drafting(batch: int, depth: int) -> float:
    return 0.0


def slow_drafting(batch: int, depth: int) -> float:
    return 0.01 * depth + 0.002 * batch


def pooled(length: int, survival: tuple[float, ...] = (), since_s: float = 0.0, pages: int = 0) -> Pooled:
    return Pooled(length, 1, since_s, survival, len(survival), tuple(range(pages, pages + len(survival) + 1)))


def price(costs: StepCosts = COSTS, *, is_pipelined: bool = False) -> BatchPrice:
    return BatchPrice(costs, slow_drafting, is_pipelined)


survivals = st.lists(st.floats(0.0, 1.0), max_size=3).map(lambda found: tuple(sorted(found, reverse=True)))
pools = st.lists(
    st.builds(
        lambda length, rows, since_s, survival, more: Pooled(
            length, rows, since_s, survival, len(survival), tuple(more + n // 2 for n in range(len(survival) + 1))
        ),
        st.integers(1, 20000),
        st.integers(1, 3),
        st.floats(0, 10),
        survivals,
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=4,
)
objectives = st.builds(
    Objective, token_weight=st.sampled_from([0.0, 0.5, 1.0, 3.0]), max_s=st.sampled_from([0.09, 0.12, inf])
)


def value(pool: list[Pooled], kept: dict[int, int], price: BatchPrice, objective: Objective) -> float:
    """Return the objective of these candidates, from its formula; infinite for several beyond T_max."""
    rows = sum(pool[i].rows + count for i, count in kept.items())
    verify_s = price.costs.seconds(rows)
    verify_s += sum(price.costs.reading.seconds(pool[i].length, pool[i].rows + n) for i, n in kept.items())
    draft_s = price.draft_s(len(kept), max(pool[i].depth for i in kept))
    whole_s = max(draft_s, verify_s) if price.is_pipelined else draft_s + verify_s
    plain_s = price.costs.seconds(sum(one.rows for one in pool))
    plain_s += sum(price.costs.reading.seconds(one.length, one.rows) for one in pool)
    token_s = objective.token_weight * plain_s / len(pool)
    tokens = len(kept) + sum(sum(pool[i].survival[:count]) for i, count in kept.items())
    return (whole_s - token_s * tokens) / len(kept) if whole_s <= objective.max_s or len(kept) == 1 else inf


def brute_force(pool: list[Pooled], price: BatchPrice, max_rows: int, objective: Objective) -> float:
    """Return the least objective over all windows around the longest waiting, and all candidates of each."""
    order = sorted(range(len(pool)), key=lambda i: (pool[i].length, i))
    oldest = min(range(len(pool)), key=lambda i: (pool[i].since_s, i))
    best = inf
    for first, last in product(range(len(order)), repeat=2):
        window = order[first : last + 1]
        if oldest not in window:
            continue
        for counts in product(*(range(len(pool[i].survival) + 1) for i in window)):
            kept = dict(zip(window, counts, strict=True))
            if sum(pool[i].rows + count for i, count in kept.items()) <= max_rows:
                best = min(best, value(pool, kept, price, objective))
    return best


worlds = st.one_of(  # where rows read their contexts, the order of candidates heeds no cap on T
    st.tuples(
        st.just(COSTS),
        st.just(False),
        st.builds(Objective, token_weight=st.sampled_from([0.0, 0.5, 1.0, 3.0]), max_s=st.just(inf)),
    ),
    st.tuples(st.just(BY_CONTEXT), st.booleans(), objectives),
)


@given(pools, worlds, st.integers(3, 20))
def test_no_window_and_no_candidates_do_better(
    pool: list[Pooled], world: tuple[StepCosts, bool, Objective], max_rows: int
) -> None:
    costs, is_pipelined, objective = world
    how = price(costs, is_pipelined=is_pipelined)
    chosen = choose(pool, how, max_rows, inf, objective)
    kept = {i: count for i, count in enumerate(chosen) if count is not None}
    least = brute_force(pool, how, max_rows, objective)
    if least < inf:
        assert value(pool, kept, how, objective) == pytest.approx(least, abs=1e-9)
    else:
        assert kept == dict.fromkeys(range(len(pool)), 0), "some batch must run"


@given(pools, objectives, st.integers(0, 8), st.integers(0, 4), st.integers(3, 20))
def test_caps_hold_and_the_longest_waiting_is_in(
    pool: list[Pooled], objective: Objective, pages: int, most: int, max_rows: int
) -> None:
    bounds = objective.model_copy(update={"max_candidates": most})
    chosen = choose(pool, price(), max_rows, pages, bounds)
    kept = {i: count for i, count in enumerate(chosen) if count is not None}
    oldest = min(range(len(pool)), key=lambda i: pool[i].since_s)
    assert oldest in kept and len(chosen) == len(pool)
    assert sum(kept.values()) <= most
    if kept != dict.fromkeys(range(len(pool)), 0):
        assert sum(pool[i].pages[count] for i, count in kept.items()) <= pages
        assert sum(pool[i].rows + count for i, count in kept.items()) <= max_rows
        assert value(pool, kept, price(), bounds) < inf
    lengths, inside = sorted(one.length for one in pool), sorted(pool[i].length for i in kept)
    assert any(lengths[first : first + len(inside)] == inside for first in range(len(lengths))), "a window"


def test_likely_candidates_are_worth_their_rows_and_unlikely_ones_are_not() -> None:
    pool = [pooled(10, (0.9, 0.8, 0.001)), pooled(11, (0.0005,))]
    assert choose(pool, price(FLAT), 100, inf, UNBOUNDED) == [2, 0]
    assert choose(pool, price(FLAT), 100, inf, Objective(token_weight=0.0)) == [0, 0]


def test_a_context_makes_each_candidate_dearer() -> None:
    reading = StepCosts({1: 0.03, 64: 0.033}, reading=Reading(0.0, 1e-6))
    assert choose([pooled(10, (0.5,)), pooled(19000, (0.5,))], price(reading), 100, inf, UNBOUNDED) == [1, 0]


def test_beyond_the_cap_the_largest_candidate_list_shrinks_first() -> None:
    pool = [pooled(5, (0.5,) * 3), pooled(5, (0.5,) * 9), pooled(5, (0.5,) * 4)]
    assert choose(pool, price(FLAT), 100, inf, Objective(max_candidates=10)) == [3, 3, 4]


def test_memory_is_a_part_of_the_search() -> None:
    pool = [pooled(10, (0.9, 0.9), pages=1), pooled(11, (0.8, 0.8), pages=1)]
    assert choose(pool, price(FLAT), 100, 6, UNBOUNDED) == [2, 2]
    assert choose(pool, price(FLAT), 100, 4, UNBOUNDED) == [2, 0]
    assert choose(pool, price(FLAT), 100, 2, UNBOUNDED) == [0, 0]
    assert choose(pool, price(FLAT), 100, 1, UNBOUNDED) == [0, None]
    assert choose(pool, price(FLAT), 100, 0, UNBOUNDED) == [0, 0], "preemption makes room by age"


def test_a_step_that_costs_more_than_it_shares_is_not_filled() -> None:
    pool = [pooled(10), pooled(11), pooled(500)]
    how = BatchPrice(STEEP, no_drafting)
    assert choose(pool, how, 100, inf, Objective()) == [0, None, None]
    assert choose(pool, BatchPrice(COSTS, no_drafting), 100, inf, Objective()) == [0, 0, 0]


def test_a_slow_drafter_makes_room_for_more_where_it_drafts_meanwhile() -> None:
    """In a full pipeline the longer of drafting and verifying counts, so all share the drafting time."""
    pool = [pooled(10), pooled(11)]
    assert choose(pool, BatchPrice(STEEP, lambda batch, depth: 0.1, True), 100, inf, Objective()) == [0, 0]
    assert choose(pool, BatchPrice(STEEP, lambda batch, depth: 0.1 * batch), 100, inf, Objective()) == [0, None]


def test_an_empty_pool_is_an_empty_batch() -> None:
    assert choose([], price(), 10, inf, Objective()) == []


class Memory:
    """A cache with so many free pages."""

    def __init__(self, pages: int) -> None:
        self.free_tokens = pages * PAGE_TOKENS


def test_a_fork_takes_a_page_of_its_own() -> None:
    tree = Tree([1, 2, 3], [0, 0, 1], [0.9, 0.8, 0.7], [("a",)] * 3)
    tokens = [*range(PAGE_TOKENS - 2)]
    one = record(tokens, 9)
    sequence = Sequence(one, CachedSequence.of(one, tokens))
    sequence.kv.cached = len(tokens) - 1
    rows = BatchRows(1, 100, 0, FLAT)
    for pages, nodes in ((0, 0), (1, 1), (2, 2), (3, 3)):
        assert CosineSelection(no_drafting, Memory(pages), UNBOUNDED).select([sequence], [tree], rows) == [nodes]

"""Test how prompts share a step's rows: short behind long ones, long ones beside decoding sequences."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.step_costs import Reading, StepCosts
from app.policy import Policy
from app.scheduler.prefill import CHEAPER, LEAST_TOKENS, chunk_tokens, split_prefill
from app.state import BatchEntry, CachedSequence, Sequence
from tests.records import record

# two cores and a model of 135M: a row 1 ms, and as much again for every 1,500 tokens of its context
COSTS = StepCosts({1: 0.012, 257: 0.268}, reading=Reading(2.4e-6, 6.7e-7))
CHUNK, CHUNK_S = 256, 0.256
READ_ONCE = StepCosts({1: 0.012, 257: 0.268}, reading=Reading(1e-5, 0.0))  # a context costs the same for any rows
FLAT = StepCosts({1: 0.006, 257: 0.0065}, reading=Reading(1e-7, 2e-9))  # a GPU's: rows cost next to nothing


def prompt(name: str, tokens: int, cached: int = 0) -> Sequence:
    return Sequence(record(range(tokens), 8, request_id=name), CachedSequence(name, list(range(tokens)), cached=cached))


def seconds(works: list[BatchEntry], costs: StepCosts = COSTS) -> float:
    """Return the seconds of the prompts' rows."""
    rows = sum(len(work.tokens) for work in works)
    reading_s = sum(costs.reading.seconds(work.start, len(work.tokens)) for work in works)
    return costs.seconds(1 + rows) - costs.seconds(1) + reading_s


def read(prompts: list[Sequence], running_s: float = 0.0, costs: StepCosts = COSTS) -> dict[str, tuple[int, float]]:
    """Return for each prompt the steps and the seconds after which it is read."""
    waiting, steps, now_s = list(prompts), 0, 0.0
    done: dict[str, tuple[int, float]] = {}
    while waiting:
        steps += 1
        assert steps < 5000
        works = split_prefill(waiting, 10_000, chunk_tokens(costs, Policy()), costs, running_s)
        now_s += costs.seconds(1) + seconds(works, costs)
        for work in works:
            work.sequence.cached += len(work.tokens)
            if work.final:
                done[work.sequence.id] = steps, now_s
        waiting = [s for s in waiting if s.record.id not in done]
    return done


def test_a_short_prompt_behind_a_huge_one_is_read_in_the_next_step() -> None:
    done = read([prompt("huge", 7000, cached=3000), prompt("short", 37)])
    assert done["short"][0] == 1
    assert done["short"][1] <= 0.012 + CHUNK_S


@pytest.mark.parametrize("running_s", [0.0, 0.012])
def test_a_short_prompt_is_read_at_once_though_a_huge_one_takes_long_for_its_context(running_s: float) -> None:
    for cached in (3000, 9000):
        works = split_prefill([prompt("huge", 9500, cached), prompt("short", 37)], 10_000, CHUNK, READ_ONCE, running_s)
        assert [work.sequence.id for work in works] == ["huge", "short"] and works[1].final


def test_a_huge_prompt_takes_little_longer_in_bounded_chunks() -> None:
    s = prompt("huge", 7000)
    steps, took_s = read([s])["huge"]
    whole_s = sum(seconds([BatchEntry(s, at, s.tokens[at : at + 256], None, False)]) for at in range(0, 7000, 256))  # type: ignore[arg-type]
    assert took_s < 1.1 * whole_s + 0.012 * 28
    assert steps > 7000 / 256 * 2


def test_a_long_prompt_takes_a_bounded_part_of_steps_that_decode() -> None:
    running_s = 0.012
    for beside in (1.0, 2.0, 8.0):
        works = split_prefill([prompt("huge", 7000)], 10_000, CHUNK, COSTS, running_s, beside)
        most_s = min(beside * running_s, CHUNK_S)
        assert 0.8 * most_s < seconds(works) <= most_s + 1e-6
    deep = split_prefill([prompt("huge", 7000, cached=6500)], 10_000, CHUNK, COSTS, running_s)
    assert len(deep[0].tokens) == LEAST_TOKENS, "less than that would read the context for nothing"
    works = split_prefill([prompt("huge", 7000, cached=6500)], 10_000, CHUNK, READ_ONCE, running_s)
    assert 0.9 * 0.065 < seconds(works, READ_ONCE) - 0.065 <= 0.065, "as long for rows as for the context"
    short = split_prefill([prompt("short", 250)], 10_000, CHUNK, COSTS, running_s)
    assert short[0].final, "what fits into a chunk is read at once"


def test_where_rows_cost_next_to_nothing_a_huge_prompt_gets_whole_chunks() -> None:
    size = chunk_tokens(FLAT, Policy())
    assert size == Policy().max_batch_tokens
    for running_s in (0.0, 0.006):
        steps, _ = read([prompt("huge", 8192)], running_s, FLAT)["huge"]
        assert steps <= 8192 / 256 / 2, "half as many as chunks of 256, though rows of long contexts take more"


@pytest.mark.parametrize("running_s", [0.0, 0.006])
def test_where_a_step_is_flat_half_a_chunk_is_read_though_the_context_takes_long(running_s: float) -> None:
    flat = StepCosts({1: 0.006, 2048: 0.0062}, reading=Reading(1e-7, 5e-10, 0.1))
    for policy, most in ((Policy(max_batch_tokens=256), 64), (Policy(prefill_chunk_tokens=2048), 8)):
        size, s, steps = chunk_tokens(flat, policy), prompt("huge", 8192), 0
        while s.uncached:
            (work,) = split_prefill([s], 10_000, size, flat, running_s)
            assert len(work.tokens) >= min(s.uncached, size // 2)
            s.kv.cached += len(work.tokens)
            steps += 1
        assert steps <= most


@pytest.mark.parametrize(("policy", "most"), [(Policy(), 40), (Policy(prefill_chunk_tokens=2048), 8)])
def test_a_long_prompt_alone_on_a_gpu_takes_few_steps(policy: Policy, most: int) -> None:
    gpu = StepCosts({1: 0.004, 128: 0.0042, 512: 0.011, 2048: 0.045}, reading=Reading(5e-7, 2e-9, 0.08))
    s, steps = prompt("huge", 8192), 0
    while s.uncached:
        (work,) = split_prefill([s], 10_000, chunk_tokens(gpu, policy), gpu)
        s.kv.cached += len(work.tokens)
        steps += 1
    assert steps <= most


def test_a_chunk_is_as_large_as_makes_a_token_cheaper() -> None:
    bends = StepCosts({1: 0.005, 256: 0.006, 512: 0.0085, 2048: 0.030})
    assert chunk_tokens(COSTS, Policy()) == 256, "a row takes the same in a chunk of any size"
    assert chunk_tokens(bends, Policy()) == 512
    assert bends.seconds(1024) > 2 * CHEAPER * bends.seconds(512)
    assert chunk_tokens(FLAT, Policy(max_batch_tokens=1200)) == 1024
    assert chunk_tokens(FLAT, Policy(max_batch_tokens=100)) == 100
    assert chunk_tokens(FLAT, Policy(prefill_chunk_tokens=16)) == 2048


def test_equal_prompts_are_read_one_after_the_other() -> None:
    done = read([prompt(name, 400) for name in "abc"])
    assert done["a"] < done["b"] < done["c"]
    assert done["a"][0] == 2


def test_a_stream_of_short_prompts_does_not_starve_a_huge_one() -> None:
    huge = prompt("huge", 3000)
    steps = 0
    while huge.uncached:
        steps += 1
        for work in split_prefill([huge, *(prompt(f"s{i}", 200) for i in range(5))], 10_000, CHUNK, COSTS):
            work.sequence.cached += len(work.tokens)
        assert steps < 60
    assert steps > 3000 / 128, "and they get the other half"


costs = st.builds(
    lambda first, rows, token, row_token: StepCosts({1: first, 257: first + rows}, reading=Reading(token, row_token)),
    st.floats(1e-4, 1.0),
    st.floats(0.0, 3.0),
    st.floats(0.0, 1e-4),
    st.floats(0.0, 1e-5),
)
prompts = st.lists(st.tuples(st.integers(1, 9000), st.floats(0.0, 0.999)), min_size=1, max_size=8).map(
    lambda found: [prompt(f"p{i}", tokens, int(tokens * part)) for i, (tokens, part) in enumerate(found)]
)


@settings(max_examples=400, deadline=None)
@given(prompts, costs, st.integers(8, 512), st.integers(16, 512), st.just(0.0) | st.floats(1e-3, 1.0))
def test_every_share_is_sound(
    waiting: list[Sequence], table: StepCosts, max_tokens: int, chunk: int, running_s: float
) -> None:
    works = split_prefill(waiting, max_tokens, chunk, table, running_s)
    assert works and works[0].sequence is waiting[0].kv, "the oldest moves, whatever else waits"
    assert sum(len(work.tokens) for work in works) <= min(max_tokens, chunk)
    assert len(works[0].tokens) >= min(waiting[0].uncached, LEAST_TOKENS, max_tokens // 2)
    order = [[s.kv for s in waiting].index(work.sequence) for work in works]
    assert order == sorted(set(order))
    for work in works:
        s = work.sequence
        assert work.start == s.cached and not len(work.tree)
        assert work.tokens == s.tokens[s.cached : s.cached + len(work.tokens)] and work.tokens
        assert work.final == (len(work.tokens) == s.uncached)


@settings(max_examples=100, deadline=None)
@given(prompts, st.just(0.0) | st.floats(1e-3, 0.1))
def test_prompts_take_no_longer_of_a_step_than_a_chunk(waiting: list[Sequence], running_s: float) -> None:
    works = split_prefill(waiting, 10_000, CHUNK, COSTS, running_s)
    least_s = max(
        COSTS.seconds(1 + LEAST_TOKENS) - COSTS.seconds(1) + COSTS.reading.seconds(s.cached, LEAST_TOKENS)
        for s in waiting
    )
    assert seconds(works) <= CHUNK_S + least_s + 1e-6


@settings(max_examples=50, deadline=None)
@given(st.integers(300, 9000), st.lists(st.integers(1, 200), min_size=1, max_size=4), st.sampled_from([0.0, 0.012]))
def test_short_prompts_behind_a_huge_one_are_read_within_few_steps(
    huge: int, short: list[int], running_s: float
) -> None:
    done = read([prompt("huge", huge), *(prompt(f"s{i}", tokens) for i, tokens in enumerate(short))], running_s)
    steps = max(done[f"s{i}"][0] for i in range(len(short)))
    assert steps <= 1 + sum(short) / 64

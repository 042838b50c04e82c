"""Test which requests a load makes, and when."""

import pytest

from lab.load import Block, Load

PROMPTS = {"code": ("a", "b", "c"), "prose": ("x", "y", "z")}


def test_counted_prompts_come_in_blocks_and_the_warming_up_ones_are_others() -> None:
    warm_up, first, second = Load(prompts=2, warm_up=1, blocks=2, streams=3).of(PROMPTS)
    assert warm_up == Block((("code", "c"), ("prose", "z")), 3)
    counted = [*first.requests, *second.requests]
    assert sorted(counted) == [("code", "a"), ("code", "b"), ("prose", "x"), ("prose", "y")]
    assert len(first.requests) == 2 and first.arrivals_s is None


def test_a_domain_with_too_few_prompts_is_refused() -> None:
    with pytest.raises(ValueError, match="one has 3"):
        Load(prompts=3, warm_up=1, blocks=1, streams=1).of(PROMPTS)


def test_a_block_at_rates_has_all_prompts_in_turn_at_the_same_times_for_a_seed() -> None:
    load = Load(prompts=2, warm_up=0, blocks=2, streams=1, seed=1, rates=(1.0, 20.0), seconds=10.0)
    _, first, second = load.of(PROMPTS)
    assert load.of(PROMPTS)[1:] == [first, second]
    assert first.arrivals_s is not None and second.arrivals_s is not None
    assert 60 < len(first.requests) == len(first.arrivals_s) < 150
    assert sum(at_s > 5.0 for at_s in first.arrivals_s) > 5 * sum(at_s < 5.0 for at_s in first.arrivals_s)
    assert first.requests[4:8] == first.requests[:4] != (), "they come round"
    assert first.arrivals_s != second.arrivals_s


def test_a_request_starts_when_a_stream_is_free_or_when_it_is_due() -> None:
    closed = Block((("code", "a"), ("code", "b")), 1)
    assert closed.may_start(0, 0, 0.0) and not closed.may_start(1, 1, 9.0) and not closed.may_start(2, 0, 9.0)
    due = Block(closed.requests, 1, (0.5, 2.0))
    assert due.may_start(0, 5, 0.5) and not due.may_start(1, 0, 1.9)

"""Test what drafting is expected to take: by batch, depth and what was seen of them."""

import pytest

from app.speculation.draft_costs import DraftCosts


def taught(*rounds: tuple[int, int, float]) -> DraftCosts:
    """Return the costs after rounds of (batch, depth, seconds)."""
    costs = DraftCosts()
    for batch, depth, seconds in rounds:
        costs.update(batch, depth, seconds)
    return costs


def test_the_lowest_of_the_first_few_rounds_counts() -> None:
    """The first ones may come beside a prompt that is read, or compile something."""
    found = taught((1, 4, 0.080), (1, 4, 0.020)).seconds(1, 4)
    assert found == pytest.approx(0.020, rel=0.1)
    assert taught((1, 4, 0.020), (1, 4, 0.080)).seconds(1, 4) == pytest.approx(0.040, rel=0.15), "bounded and averaged"


def test_once_some_were_seen_a_lower_one_is_one_of_many() -> None:
    costs = taught(*[(1, 4, 0.020)] * 5, (1, 4, 0.010))
    assert 0.015 < costs.seconds(1, 4) < 0.0205


def test_the_answers_of_one_round_count_as_one() -> None:
    costs = taught(*[(16, 4, 0.020)] * 10)
    for _ in range(16):
        costs.update(16, 4, 0.040, share=1 / 16)
    assert costs.seconds(16, 4) == pytest.approx(
        taught(*[(16, 4, 0.020)] * 10, (16, 4, 0.040)).seconds(16, 4), rel=0.03
    )


def test_what_is_hardly_known_costs_no_more_than_a_larger_batch() -> None:
    slow_alone = (1, 4, 0.080)
    costs = taught(slow_alone, *[(4, 4, 0.020)] * 5)
    assert costs.seconds(1, 4) == costs.seconds(2, 4) == costs.seconds(4, 4) == pytest.approx(0.020, rel=0.1)
    known = taught(*[slow_alone] * 5, *[(4, 4, 0.020)] * 5)
    assert known.seconds(1, 4) == pytest.approx(0.080, rel=0.1), "what was seen often enough is believed"
    assert known.seconds(2, 4) == known.seconds(4, 4), "an unmeasured one is between them"


def test_a_larger_batch_is_not_bounded_by_a_smaller_one() -> None:
    assert taught(*[(1, 4, 0.020)] * 5, (8, 4, 0.050)).seconds(8, 4) == pytest.approx(0.050, rel=0.1)


def test_a_sequence_adds_little_where_many_take_as_long_as_one() -> None:
    alike = taught(*[(batch, 4, 0.020) for batch in (1, 2, 4) for _ in range(5)])
    assert (alike.added_s(4, 4), alike.added_s(1, 4)) == (pytest.approx(0.0, abs=1e-6), pytest.approx(0.020, rel=0.1))
    each = taught(*[(batch, 4, 0.020 * batch) for batch in (1, 2, 4) for _ in range(5)])
    assert each.added_s(4, 4) == pytest.approx(0.020, rel=0.1)
    assert taught(*[(1, 4, 0.020)] * 5, *[(2, 4, 0.010)] * 5).added_s(2, 4) == 0.0
    assert taught(*[(4, 4, 0.080)] * 5).added_s(4, 4) == 0.0, "no smaller batch was seen"


def test_a_bound_can_only_lower_what_is_known() -> None:
    costs = taught(*[(1, 1, 0.020)] * 5)
    for _ in range(5):
        costs.update(1, 1, 0.040, is_bound=True)
    assert costs.seconds(1, 1) == pytest.approx(0.020, rel=0.1)
    for _ in range(5):
        costs.update(1, 1, 0.010, is_bound=True)
    assert costs.seconds(1, 1) < 0.015
    unknown = DraftCosts()
    unknown.update(1, 1, 0.040, is_bound=True)
    assert unknown.seconds(1, 1) == pytest.approx(0.040, rel=0.1), "better than nothing"
    beside = taught(*[(1, 1, 0.020)] * 2)
    beside.update(1, 1, 0.200, is_beside=True, is_bound=True)
    assert beside.seconds(1, 1) == pytest.approx(0.020, rel=0.1)


def test_a_bound_at_one_depth_makes_no_other_dearer() -> None:
    costs = taught(*[(1, depth, 0.010 + 0.015 * depth) for depth in (2, 4)] * 5)
    before = [costs.seconds(1, depth) for depth in (1, 8, 16)]
    for _ in range(5):
        costs.update(1, 1, 0.5 * before[0], is_bound=True)
    after = [costs.seconds(1, depth) for depth in (1, 8, 16)]
    assert all(new < old for new, old in zip(after, before, strict=True))


def test_another_split_is_expected_by_the_nearest_known_one() -> None:
    costs = taught(*[(1, 4, 0.020)] * 5)
    costs.expect(3, 2.0)
    costs.use(3)
    assert costs.seconds(1, 4) == pytest.approx(0.040, rel=0.1)


def test_rounds_beside_the_verifiers_work_only_stand_in_for_others() -> None:
    costs = DraftCosts()
    for _ in range(5):
        costs.update(4, 4, 0.030, is_beside=True)
    assert costs.seconds(4, 4) == pytest.approx(0.030, rel=0.1)
    costs.update(4, 4, 0.020)
    assert costs.seconds(4, 4) == pytest.approx(0.020, rel=0.1)
    for _ in range(5):
        costs.update(4, 4, 0.020)
    costs.update(4, 4, 0.060, is_beside=True)
    assert costs.seconds(4, 4) == pytest.approx(0.020, rel=0.1)

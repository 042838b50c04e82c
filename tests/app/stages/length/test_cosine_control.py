"""Test CoSine's control: drafters and drafts grow while the verifier idles, and shrink once it does not."""

from app.estimates.draft_costs import DraftCosts
from app.estimates.step_costs import StepCosts
from app.stages.length.cosine_control import FIRST_DRAFTERS, FIRST_LENGTH, SETTLING, CosineLength
from tests.app.stages.length.candidates import likely

COSTS = StepCosts({1: 0.02, 64: 0.02})


def lengths(rule: CosineLength, round_s: float, rounds: int, at_s: float = 0.0) -> list[int]:
    found = []
    for i in range(rounds):
        (depth,) = rule.depths({"r": likely(4)}, COSTS, DraftCosts(), at_s + i * round_s, {})
        found.append(depth)
    return found


def test_an_idle_verifier_gets_more_and_a_busy_one_fewer() -> None:
    rule = CosineLength(1)
    grown = lengths(rule, 0.06, 60)
    assert grown[0] == FIRST_LENGTH and grown[-1] == 8 and grown == sorted(grown)
    assert all(b - a <= 1 for a, b in zip(grown, grown[1:], strict=False))
    shrunk = lengths(rule, 0.0205, 100, at_s=99.0)
    assert shrunk[-1] == 1 and shrunk[2:] == sorted(shrunk[2:], reverse=True)


def test_drafters_come_first_and_go_last() -> None:
    rule = CosineLength(4)
    seen = [(rule.drafters, lengths(rule, 0.06, 1, i * 0.06)[0]) for i in range(80)]
    assert [*dict.fromkeys(seen)] == [(FIRST_DRAFTERS, 4), (3, 4), (4, 4), (4, 5), (4, 6), (4, 7), (4, 8)]
    seen = [(rule.drafters, lengths(rule, 0.0205, 1, 99.0 + i * 0.0205)[0]) for i in range(120)]
    assert [*dict.fromkeys(seen)][-4:] == [(4, 1), (3, 1), (2, 1), (1, 1)]


def test_a_verifier_that_is_busy_with_the_rows_of_all_drafters_does_not_idle() -> None:
    rule, costs = CosineLength(4), StepCosts({5: 0.01, 1 + FIRST_DRAFTERS * FIRST_LENGTH: 0.05})
    found = [rule.depths({"r": likely(4)}, costs, DraftCosts(), i * 0.052, {})[0] for i in range(9)]
    assert (rule.drafters, found[-1]) == (FIRST_DRAFTERS, FIRST_LENGTH - 1)


def test_it_holds_between_the_two_bounds_and_changes_slowly() -> None:
    assert set(lengths(CosineLength(1), 0.025, 50)) == {FIRST_LENGTH}
    changes = lengths(CosineLength(1), 0.06, 40)
    first = changes.index(FIRST_LENGTH + 1)
    assert changes.index(FIRST_LENGTH + 2) - first > SETTLING


def test_a_clock_that_was_set_back_changes_nothing() -> None:
    rule = CosineLength(1)
    assert [*lengths(rule, 0.0, 9), *lengths(rule, -1.0, 9)] == [FIRST_LENGTH] * 18

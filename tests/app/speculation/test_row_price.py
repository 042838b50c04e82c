"""Test the price at which trees grow: a row's seconds at the pace that verdicts show."""

import pytest

from app.engine.step_costs import StepCosts
from app.round_observer import VerifiedRound
from app.speculation.row_price import RowPrice
from app.state import Sequence, Verdict
from tests import fakes

LINE = StepCosts({1: 0.10, 101: 0.20})  # a millisecond a row
FLAT = StepCosts({1: 0.10, 101: 0.10})


def sequence(last_token_s: float | None = None) -> Sequence:
    found = fakes.sequence([1, 2, 3])
    found.last_token_s = last_token_s
    return found


def verdict(tokens: int, last_token_s: float | None) -> VerifiedRound:
    own = sequence(last_token_s)
    return VerifiedRound(own, own.entry(3), Verdict([], []), [7] * tokens)


def test_before_any_verdict_the_pace_is_that_of_plain_decoding() -> None:
    price = RowPrice(LINE).of([(sequence(), 4)], 1)
    assert price.pace == pytest.approx(10.0)
    assert price.least_survival == pytest.approx(10.0 * 0.001)


def test_a_row_costs_its_seconds_at_the_pace_of_all_sequences() -> None:
    own = RowPrice(LINE)
    own.update([verdict(3, 9.9), verdict(1, 9.7), verdict(5, None)], 10.0)  # the last is a first token
    price = own.of([(sequence(), 4)], 8)
    assert price.pace == pytest.approx(8 * 4 / 0.4), "tokens a second of all that wait for this one"
    assert price.least_survival == pytest.approx(8 * 10.0 * 0.001)
    assert RowPrice(FLAT).of([(sequence(), 4)], 8).least_survival == 0.0, "where rows are free all are worth one"


def test_no_node_is_worth_a_row_that_takes_a_whole_token() -> None:
    steep = StepCosts({1: 0.1, 2: 0.2})
    assert RowPrice(steep).of([(sequence(), 4)], 1).least_survival == 1.0


def test_the_pace_follows_the_last_rounds() -> None:
    own = RowPrice(LINE)
    for tokens in (1, 4):
        for _ in range(200):
            own.update([verdict(tokens, 9.9)], 10.0)
    assert own.of([(sequence(), 4)], 1).pace == pytest.approx(40.0, rel=0.01)

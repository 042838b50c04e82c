"""Test quotients over baselines, and their bands over worlds."""

import pytest

from lab.simulate.load import RequestTimes
from lab.testbeds.arms import ARMS
from lab.testbeds.comparisons import COMPARISONS, READINGS, band, bands, compared, order_kept, verdict
from lab.testbeds.figures import Figures
from lab.testbeds.fitted import read_fitted
from lab.testbeds.tables import bands_table
from lab.testbeds.worlds import FOLDER, read_world


def figures(tokens_per_s: float, request_s: float = 1.0, price_per_h: float = 1.0) -> Figures:
    return Figures((RequestTimes(request_s, 0.1, 0.1),), tokens_per_s, 1.0, 0.0, 0.0, price_per_h, 1.0)


def test_a_quotient_is_over_the_best_of_the_others() -> None:
    rows = {"off": figures(10.0, 8.0), "specinfer": figures(20.0, 5.0, 4.0), "cosine": figures(30.0, 4.0, 6.0)}
    values = {one.paper: compared(one, rows) for one in COMPARISONS["cosine"]}
    assert values["latency, cosine over the best baseline"] == pytest.approx(4.0 / 5.0)
    assert values["tokens/s, cosine over off"] == pytest.approx(3.0)
    assert values["headline, at equal cost"] == pytest.approx(5.0 / 10.0)
    assert values["tokens/s, pace over cosine"] is None


def test_every_comparison_and_order_names_arms_and_every_headline_a_comparison() -> None:
    for paper, world in (("cosine", "cosine-70b"), ("faser", "faser-32b")):
        names = {arm.name for arm in ARMS[paper](read_world(FOLDER / f"{world}.json"))}
        assert names >= {name for one in COMPARISONS[paper] for name in (one.arm, *one.over)}
        for reading in READINGS[paper].values():
            assert names >= {*reading.order}
            assert {one.paper for one in COMPARISONS[paper]} >= reading.headlines.keys()


def test_the_fitted_worlds_readings_are_those_that_have_a_headline() -> None:
    read = {one.like.partition("-")[0]: set[str]() for one in read_fitted().values()}
    for one in read_fitted().values():
        read[one.like.partition("-")[0]] |= {*one.readings}
    assert read == {paper: {*readings} for paper, readings in READINGS.items()}


def test_a_band_goes_from_the_least_to_the_largest_value() -> None:
    assert band([3.0, 1.0, 2.0, 9.0]) == {"low": 1.0, "median": 2.5, "high": 9.0}


@pytest.mark.parametrize(
    ("values", "excludes", "narrow", "holds"),
    [
        ([1.2, 1.3, 1.4], True, True, True),
        ([0.9, 1.3, 1.4], False, True, True),
        ([1.05, 1.3, 2.9], True, False, True),
        ([1.05, 1.1, 1.2], True, True, False),
        ([0.6, 0.7, 0.8], True, True, False),
    ],
)
def test_reproduced_needs_a_narrow_band_without_1_that_holds_the_number(
    values: list[float], excludes: bool, narrow: bool, holds: bool
) -> None:
    found = verdict(1.3, values)
    assert (found["excludes 1"], found["narrow"], found["holds"]) == (excludes, narrow, holds)
    assert found["reproduced"] == (excludes and narrow and holds)


def test_order_is_kept_where_every_arm_beats_the_next() -> None:
    good = {"a": figures(3.0), "b": figures(2.0), "c": figures(1.0)}
    found = order_kept(("a", "b", "c"), [good] * 4 + [{**good, "c": figures(2.5)}])
    assert found["part"] == 0.8 and found["is kept"]
    assert not order_kept(("b", "a"), [good])["is kept"]


def test_bands_are_over_worlds_and_stand_in_a_table() -> None:
    arms = {"vanilla": 1.0, "vanilla of 6": 2.0, "faser, lengths": 3.0, "faser, lengths and exit": 2.5}
    rows = [{name: figures(pace) for name, pace in {**arms, "faser": faser}.items()} for faser in (3.0, 4.0, 8.0)]
    found = {"worlds": ["a", "b", "c"]} | bands("faser", "as stated", rows)
    assert found["bands"]["tokens/s over the best baseline"] == {"low": 1.5, "median": 2.0, "high": 4.0}
    assert "tokens/s, pace over faser" not in found["bands"], "pace was not run"
    table = bands_table("as stated", found)
    assert "| tokens/s over the best baseline | 1.50 | 2.00 | 4.00 |" in table
    assert "| tokens/s over the best baseline | 1.53 | 1.50 to 4.00 | yes | no | yes | no |" in table
    assert "faser, lengths and exit > vanilla of 6: in 67% of the worlds" in table

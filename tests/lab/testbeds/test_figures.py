"""Test the figures of requests and steps: their arithmetic, and that simulations give them."""

import pytest

from lab.simulate.load import RequestTimes
from lab.testbeds.arms import ARMS, off
from lab.testbeds.figures import ExitCounts, Figures, parts
from lab.testbeds.play import alone, play
from lab.testbeds.texts import Wanted, made
from lab.testbeds.worlds import FOLDER, read_world

ALONE = RequestTimes(10.0, 1.0, 0.1)


def figures(*requests: RequestTimes, exits: ExitCounts | None = None) -> Figures:
    return Figures(requests, 10.0, 1.0, 0.0, 0.0, 1.0, 1.0, lengths={0: 1, 4: 3}, batches={2: 4}, exits=exits)


def test_a_level_is_attained_within_both_of_its_limits() -> None:
    times = [(1.4, 0.14), (1.6, 0.14), (1.4, 0.16), (2.9, 0.29), (9.0, 0.1), (1.0, 0.9)]
    own = figures(*(RequestTimes(1.0, *one) for one in times))
    assert own.attained(ALONE) == {"1.5": 0.167, "2": 0.5, "3": 0.667, "5": 0.667}


def test_percentiles_are_those_of_each_time() -> None:
    own = figures(*(RequestTimes(float(i), i / 10, i / 100) for i in range(101)))
    assert own.percentiles() == {
        "request_s": [50.0, 95.0, 99.0],
        "first_token_s": [5.0, 9.5, 9.9],
        "token_s": [0.5, 0.95, 0.99],
    }
    assert own.request_s == 50.0 and own.token_s == pytest.approx(0.5)


def test_histograms_are_parts_by_class_with_zero_as_a_length() -> None:
    assert parts({0: 2, 3: 4, 11: 1, 12: 1}) == {"0": 0.25, "3": 0.5, "12": 0.25}
    assert parts({}) == {}


def test_a_record_holds_what_the_figures_say() -> None:
    kept = figures(ALONE, exits=ExitCounts(100, 40, 3)).record(ALONE)
    assert kept["cost"] == pytest.approx(1e6 / 36000.0, abs=1e-5) and kept["tokens_per_s"] == 10.0
    assert kept["drafted a step"] == {"0": 0.25, "4": 0.75} and kept["batches"] == {"2": 1.0}
    assert kept["exits"] == {"looked at": 100, "left": 40, "wrong": 3}
    assert "exits" not in figures(ALONE).record(ALONE)


def test_sustained_rates_follow_littles_law() -> None:
    assert figures(ALONE).sustained(400.0).tokens_per_s == 40.0


def test_plain_decoding_has_no_drafts_and_its_batch() -> None:
    world = read_world(FOLDER / "faser-32b.json")
    log = made(world, [Wanted("all", 8, 20)] * 6, 0)
    own = play(world, off(), log, 3, 0)
    assert [*own.lengths] == [0] and max(own.batches, key=own.batches.__getitem__) == 3
    assert sum(own.batch_s.values()) == pytest.approx(own.busy["target"] * 6 * 20 / own.tokens_per_s)
    assert len(own.requests) == 6 and own.exits is None
    first = alone(world, log, 0)
    assert own.attained(first)["5"] == 1.0 and first.total_s < own.request_s


def test_early_exit_reports_rows_and_drafters_are_busy() -> None:
    world = read_world(FOLDER / "faser-32b.json")
    by_name = {arm.name: arm for arm in ARMS["faser"](world)}
    log = made(world, [Wanted("all", 8, 14)] * 96, 0)
    own = play(world, by_name["faser"], log, 96, 0)
    assert own.exits is not None and own.exits.looked_at >= own.exits.left >= own.exits.wrong
    assert own.exits.left > 0 and own.busy["draft:qwen3-0.6b"] > 0.0
    assert sum(length * count for length, count in own.lengths.items()) > 0
    assert play(world, by_name["faser, lengths"], log, 96, 0).exits is None


def test_pipeinfer_has_the_same_figures() -> None:
    world = read_world(FOLDER / "cosine-70b.json")
    arm = next(arm for arm in ARMS["cosine"](world) if arm.name == "pipeinfer, mixture")
    log = made(world, [Wanted("finance", 8, 20)] * 4, 0)
    own = play(world, arm.only(arm.variants[2]), log, 2, 0)
    assert own.chosen == "lengths fixed:3" and {0, 3} <= {*own.lengths} and len(own.requests) == 4
    assert sum(own.batch_s.values()) == pytest.approx(own.busy["target"] * 4 * 20 / own.tokens_per_s)

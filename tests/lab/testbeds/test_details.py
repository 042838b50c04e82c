"""Test the figures of requests and steps: their arithmetic, and that simulations give them."""

import json

import pytest

from lab.simulate.load import RequestTimes
from lab.testbeds.arms import ARMS
from lab.testbeds.details import Details, ExitCounts, dumps, parts, requests_table, steps_table
from lab.testbeds.play import alone, play, with_length
from lab.testbeds.texts import Wanted, made
from lab.testbeds.worlds import FOLDER, read_world

ALONE = RequestTimes(10.0, 1.0, 0.1)


def test_a_level_is_attained_within_both_of_its_limits() -> None:
    times = [(1.4, 0.14), (1.6, 0.14), (1.4, 0.16), (2.9, 0.29), (9.0, 0.1), (1.0, 0.9)]
    own = Details(tuple(RequestTimes(1.0, *one) for one in times))
    assert own.attained(ALONE) == {"1.5": 0.167, "2": 0.5, "3": 0.667, "5": 0.667}


def test_percentiles_are_those_of_each_time() -> None:
    own = Details(tuple(RequestTimes(float(i), i / 10, i / 100) for i in range(101)))
    assert own.percentiles() == {
        "request_s": [50.0, 95.0, 99.0],
        "first_token_s": [5.0, 9.5, 9.9],
        "token_s": [0.5, 0.95, 0.99],
    }


def test_histograms_are_parts_by_class_with_zero_as_a_length() -> None:
    assert parts({0: 2, 3: 4, 11: 1, 12: 1}) == {"0": 0.25, "3": 0.5, "12": 0.25}
    assert parts({}) == {}


def test_tables_and_files_hold_what_is_kept() -> None:
    own = Details((ALONE,), {0: 1, 4: 3}, {2: 4}, {2: 0.8}, {"target": 0.9}, ExitCounts(100, 40, 3))
    kept = own.kept(ALONE)
    rows = {"faser": kept, "off": Details((ALONE,), {0: 1}, {1: 1}, {1: 1.0}).kept(ALONE)}
    assert "| faser | 10.00, 10.00, 10.00 | 1.00, 1.00, 1.00 | 100.0, 100.0, 100.0 | 1.00, 1.00, 1.00, 1.00 |" in (
        requests_table(rows)
    )
    steps = steps_table(rows)
    assert "| faser | 0: 0.25, 4: 0.75 | 2: 1.00 | target: 0.90 | 100, 40, 3 |" in steps
    assert "| off | 0: 1.00 | 1: 1.00 |  |  |" in steps
    text = dumps({"rows": rows, "a": ["[ b", 1]})
    assert json.loads(text) == {"rows": rows, "a": ["[ b", 1]}
    assert '{"0": 0.25, "4": 0.75}' in text  # a bracket in a string is left alone


def test_plain_decoding_has_no_drafts_and_its_batch() -> None:
    world = read_world(FOLDER / "faser-32b.json")
    by_name = {arm.name: arm for arm in ARMS["faser"].arms(world)}
    log = made(world, [Wanted("all", 8, 20)] * 6, 0)
    found = play(world, by_name["off"], log, 3, 0)
    own = found.details
    assert [*own.lengths] == [0] and max(own.batches, key=own.batches.__getitem__) == 3
    assert sum(own.batch_s.values()) == pytest.approx(own.busy["target"] * 6 * 20 / found.tokens_per_s)
    assert len(own.requests) == 6 and own.exits is None
    assert sum(one.total_s for one in own.requests) / 6 == pytest.approx(found.request_s)
    first = alone(world, by_name["off"], log, 0)
    assert own.attained(first)["5"] == 1.0 and first.total_s < found.request_s


def test_early_exit_reports_rows_and_drafters_are_busy() -> None:
    world = read_world(FOLDER / "faser-32b.json")
    by_name = {arm.name: arm for arm in ARMS["faser"].arms(world)}
    log = made(world, [Wanted("all", 8, 14)] * 96, 0)
    own = play(world, by_name["faser"], log, 96, 0).details
    assert own.exits is not None and own.exits.looked_at >= own.exits.left >= own.exits.wrong
    assert own.exits.left > 0 and own.busy["draft:qwen3-0.6b"] > 0.0
    assert sum(length * count for length, count in own.lengths.items()) > 0
    assert play(world, by_name["faser, lengths"], log, 96, 0).details.exits is None


def test_pipeinfer_has_the_same_figures() -> None:
    world = read_world(FOLDER / "cosine-70b.json")
    arm = next(arm for arm in ARMS["cosine"].arms(world) if arm.name == "pipeinfer, mixture")
    log = made(world, [Wanted("finance", 8, 20)] * 4, 0)
    found = play(world, with_length(arm, "micro:3"), log, 2, 0)
    own = found.details
    assert found.drafters == "mixture" and {0, 3} <= {*own.lengths} and len(own.requests) == 4
    assert sum(own.batch_s.values()) == pytest.approx(own.busy["target"] * 4 * 20 / found.tokens_per_s)
    mean_s = sum(one.token_s for one in own.requests) / 4
    assert mean_s == pytest.approx(found.token_s, rel=1e-6)

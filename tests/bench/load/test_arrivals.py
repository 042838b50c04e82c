"""Test loads: as many requests as asked for, as bursty as asked for, the same for the same seed."""

import statistics
from itertools import pairwise
from pathlib import Path

import pytest

from app.config import ROOT
from app.errors import InvalidRequest
from bench.load.arrivals import (
    Arrival,
    gamma,
    poisson,
    ramp,
    steps,
    trace,
    window,
)


def gaps(arrivals: list[Arrival]) -> list[float]:
    return [b.at_s - a.at_s for a, b in pairwise(arrivals)]


def test_a_rate_is_kept_on_average_and_the_seed_decides() -> None:
    found = poisson(5.0, 2000.0, 32)
    assert len(found) == pytest.approx(10_000, rel=0.05)
    assert found == poisson(5.0, 2000.0, 32) != poisson(5.0, 2000.0, 32, seed=1)
    assert all(0.0 <= arrival.at_s < 2000.0 and arrival.output_tokens == 32 for arrival in found)


@pytest.mark.parametrize("variation", [1.0, 3.0])
def test_gaps_vary_as_asked(variation: float) -> None:
    found = gaps(gamma(5.0, 4000.0, 32, variation=variation))
    assert statistics.stdev(found) / statistics.fmean(found) == pytest.approx(variation, rel=0.1)
    assert 1.0 / statistics.fmean(found) == pytest.approx(5.0, rel=0.1)


def test_a_ramp_goes_up_and_down() -> None:
    found = ramp([1.0, 20.0, 1.0], 900.0, 32)
    counts = [sum(300 * i <= arrival.at_s < 300 * (i + 1) for arrival in found) for i in range(3)]
    assert counts[1] > 2 * counts[0] and counts[1] > 2 * counts[2]
    assert counts[1] == pytest.approx(300 * (20.0 + 2 * (20.0 - 19.0 / 1.5 / 2)) / 3, rel=0.15)


def test_steps_keep_each_rate_for_its_part() -> None:
    found = steps([1.0, 10.0, 0.0], 900.0, 32)
    counts = [sum(300 * i <= arrival.at_s < 300 * (i + 1) for arrival in found) for i in range(3)]
    assert counts[0] == pytest.approx(300, rel=0.2) and counts[1] == pytest.approx(3000, rel=0.1) and counts[2] == 0


def test_a_trace_is_read_in_either_form_and_replayed_faster(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("timestamp,prompt_tokens,output_tokens\n12.0,7,9\n10.0,5,100\n")
    (tmp_path / "a.jsonl").write_text(
        '{"timestamp": 12, "prompt_tokens": 7, "output_tokens": 9}\n'
        '{"timestamp": 10, "prompt_tokens": 5, "output_tokens": 100}\n'
    )
    wanted = [Arrival(0.0, 64, 5), Arrival(1.0, 9, 7)]
    assert trace(tmp_path / "a.csv", speed=2.0, longest=64) == wanted
    assert trace(tmp_path / "a.jsonl", speed=2.0, longest=64) == wanted


@pytest.mark.parametrize(
    "text",
    ["", "timestamp,prompt_tokens\n1,2\n", "{", '{"timestamp": 1}', "timestamp,prompt_tokens,output_tokens\n1,0,5\n"],
)
def test_a_broken_trace_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "trace").write_text(text)
    with pytest.raises(InvalidRequest, match="trace"):
        trace(tmp_path / "trace")
    with pytest.raises(InvalidRequest):
        trace(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "requests", "prompt", "output"), [("conversation", 19366, 1155, 211), ("code", 8819, 2048, 28)]
)
def test_the_azure_traces_are_read(name: str, requests: int, prompt: int, output: int) -> None:
    found = trace(ROOT / "bench" / "data" / f"azure-2023-{name}.csv.gz")
    assert len(found) == requests and found[0].at_s == 0.0 and 3400 < found[-1].at_s < 3600
    assert sum(one.prompt_tokens or 0 for one in found) / requests == pytest.approx(prompt, abs=1)
    assert sum(one.output_tokens for one in found) / requests == pytest.approx(output, abs=1)


def test_a_window_has_the_rate_and_keeps_the_pattern() -> None:
    load = [Arrival(float(at), 1) for at in (0, 1, 4, 9, 16, 25, 36, 49, 64)]
    assert [one.at_s for one in window(load, 8.0, 0.5)] == [0.0, 0.5, 2.0, 4.5]
    assert [one.at_s for one in window(load, 8.0, 0.5, number=1)] == pytest.approx(
        [0, 8 * 9 / 48, 8 * 20 / 48, 8 * 33 / 48]
    )
    assert window(load, 8.0, 0.5, number=2) == window(load, 8.0, 0.5)
    with pytest.raises(InvalidRequest, match="trace"):
        window(load, 8.0, 2.0)

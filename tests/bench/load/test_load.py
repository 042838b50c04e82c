"""Test the report of `bench load` over requests made by hand; `tests/workers/test_load.py` sends
real ones."""

from dataclasses import replace
from itertools import count

import pytest

from bench.load.arrivals import Arrival
from bench.load.client import FILLER, prompt, run
from bench.load.report import Served, Slo, figures, parts, recovered_s, table
from bench.load.run import parse_args
from bench.prompts import PROMPTS

SLO = Slo(ttft_s=1.0, tpot_s=0.1)


def served(sent_s: float, ttft_s: float = 0.5, tpot_s: float = 0.05, tokens: int = 11, **rest: object) -> Served:
    first_s = sent_s + ttft_s
    return Served("code", sent_s, first_s + tpot_s * (tokens - 1), first_s, tokens, **rest)  # type: ignore[arg-type]


def test_percentiles_are_of_the_times_clients_met() -> None:
    found = figures([served(float(i), ttft_s=i / 100) for i in range(101)], 200.0, SLO)
    assert found["ttft_s"] == pytest.approx({"p50": 0.5, "p95": 0.95, "p99": 0.99})
    assert found["tpot_s"]["p50"] == pytest.approx(0.05)
    assert found["total_s"]["p50"] == pytest.approx(1.0)
    assert found["offered_per_s"] == pytest.approx(1.01) and found["tokens_per_s"] == pytest.approx(
        101 * 11 / 200, abs=0.01
    )


def test_goodput_counts_only_requests_within_the_objective() -> None:
    late, slow = served(0.0, ttft_s=2.0), served(0.0, tpot_s=0.2)
    failed, silent = Served("qa", 0.0, 1.0, error="queue full"), Served("qa", 0.0, 1.0)
    found = figures([served(0.0), late, slow, failed, silent], 10.0, SLO)
    assert found["goodput_per_s"] == pytest.approx(0.1)
    assert (found["failed"], found["errors"]) == (1, ["queue full"])


def test_waste_is_the_share_of_drafts_verified_in_vain() -> None:
    found = figures([served(0.0, rounds=5, drafted=12, accepted=6), served(1.0, rounds=5, drafted=8)], 5.0, SLO)
    assert found["draft_waste"] == pytest.approx(0.7)
    assert found["tokens_per_round"] == pytest.approx(2.2) and found["drafted_per_round"] == pytest.approx(2.0)


def test_series_count_the_requests_under_way() -> None:
    found = figures([served(0.0, tpot_s=0.95), served(5.0, ttft_s=1.0, tpot_s=0.4)], 10.0, SLO)["series"]
    assert found["under_way"][3] == 1.0 and found["under_way"][35] == 2.0
    assert len(found["at_s"]) == 60


def test_the_table_has_a_line_a_load() -> None:
    loads = [
        figures([served(float(i)) for i in range(3)], 5.0, SLO) | {"rate": rate, "arm": arm}
        for rate in (1.0, 2.0)
        for arm in ("on", "off")
    ]
    assert table(loads).count("\n") == 5


def test_no_prompt_comes_twice_and_a_length_is_about_kept() -> None:
    texts = [prompt(i, None)[1] for i in range(300)]
    assert len(set(texts)) == 300
    assert {prompt(i, None)[0] for i in range(5)} == set(PROMPTS)
    assert prompt(0, 200)[1].count(FILLER) == 11
    few = {"a": ("One?", "Two?"), "b": ("Three?",)}
    assert [prompt(i, None, few)[1].split(" ")[0] for i in range(5)] == ["One?", "Three?", "Two?", "Three?", "One?"]


@pytest.mark.parametrize(
    "words",
    [
        ["trace"],
        ["poisson", "--rate", "0"],
        ["steps", "--rates", "1"],
        ["poisson", "--seconds", "-1"],
        ["poisson", "--rates", "1", "2"],  # of ramp and steps
        ["soak", "--url", "http://localhost:8000"],  # whose processes would it sample?
        ["poisson", "--url", "http://localhost:8000", "--arms", "unsteered"],  # whose beat would it freeze?
        ["meanwhile", "true"],
    ],
)
def test_loads_that_make_no_sense_are_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit):
        parse_args(words)


def test_requests_that_meet_no_server_are_counted_as_failed() -> None:
    served, _ = run("http://127.0.0.1:9", [Arrival(0.0, 8)] * 3, "on", count())
    assert len(served) == 3 and all(one.error for one in served)


def test_a_request_that_could_not_be_made_fails_the_load() -> None:
    with pytest.raises(ZeroDivisionError):
        run("http://127.0.0.1:9", [Arrival(0.0, 8)], "on", count(), prompts={})


def test_refusals_are_no_failures_and_no_answers() -> None:
    lost = replace(served(13.0), error="lost")
    refused = Served("code", 12.0, 12.01, error="too many requests wait; try again in 2 s")
    found = parts([served(1.0), served(11.0), refused, lost, served(21.0)], [1.0, 10.0, 1.0], 30.0, SLO)
    assert [one["refused"] for one in found] == [0, 1, 0]
    assert [one["failed"] for one in found] == [0, 1, 0]
    assert [one["rate"] for one in found] == [1.0, 10.0, 1.0]
    assert found[1]["refused_s"]["p99"] == pytest.approx(0.01)
    assert found[1]["total_s"]["p50"] == pytest.approx(1.0)


def test_recovery_takes_several_requests_in_a_row_as_fast_as_before() -> None:
    before = [one(i, 1.0) for i in range(10)]
    slow = [one(20.0 + i / 10, 4.0) for i in range(8)]
    lucky = [one(21.05, 1.0), one(21.5, 4.0)]
    assert recovered_s([*before, *slow, *lucky, *(one(23.0 + i, 1.2) for i in range(6))], 10.0, 20.0) == 3.0
    assert recovered_s([*before, *slow, *lucky], 10.0, 20.0) is None


def one(sent_s: float, total_s: float) -> Served:
    return Served("code", sent_s, sent_s + total_s, sent_s + 0.1, tokens=5, rounds=5)

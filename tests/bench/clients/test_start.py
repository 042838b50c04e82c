"""Test the figures of `bench start`: requests paired with the warmed deployment's, and the first ten seconds."""

import pytest

from app.messages import Result, SpeculationReport, Status, Timing, Usage
from bench.clients.start import Pieces, Run, figures, table


def result(tokens: int) -> Result:
    return Result(
        id="r",
        status=Status.DONE,
        text="",
        token_ids=tuple(range(tokens)),
        finish_reason=None,
        usage=Usage(prompt_tokens=1, completion_tokens=tokens),
        timing=Timing(ttft_s=0.1, total_s=1.0),
        speculation=SpeculationReport(rounds=tokens, drafted=0, accepted=0, mean_accepted_length=1.0, by_drafter={}),
    )


def run(*pieces: Pieces, seconds: float, tokens: int = 40) -> Run:
    return Run([result(tokens)] * len(pieces), [seconds] * len(pieces), seconds, pieces)


def test_the_first_seconds_have_what_had_come_by_then() -> None:
    by_half = [(9.0, 30), (11.0, 30)]
    assert run([(1.0, 5), (10.0, 5)], by_half, seconds=20.0).early_tokens_per_s == pytest.approx((40 + 20) / 10.0)
    assert run([(15.0, 5)], [], seconds=20.0).early_tokens_per_s == 0.0
    assert run([(3.0, 5)], seconds=4.0).early_tokens_per_s == 10.0, "a shorter run counts whole"


def test_the_first_seconds_are_paired_by_block() -> None:
    slow_start = [run([(5.0, 10), (15.0, 30)], seconds=20.0), run([(5.0, 20), (15.0, 20)], seconds=20.0)]
    warmed = [run([(5.0, 20), (15.0, 20)], seconds=20.0)] * 2
    found = figures(slow_start, warmed)
    assert found["over warmed"]["mean"] == pytest.approx(1.0), "each request took as long as the warmed one's"
    assert found["first_seconds_tokens_per_s"] == [1.0, 2.0]
    assert found["first seconds over warmed"]["mean"] == pytest.approx(0.5**0.5)
    assert found["first seconds over warmed"]["pairs"] == 2
    nothing = [run([(15.0, 5)], seconds=20.0)] * 2
    assert figures(nothing, warmed)["first seconds over warmed"] is None
    assert "| just started | 2.0 | 1.00 | 1.00 (1.00) | 1.5 | 0.71 |" in table({"just started": found})

"""Test the figures of `bench load start`: requests paired with the warmed deployment's, and the first ten seconds."""

import pytest

from bench.load.report import Served
from bench.load.start import Run, figures

Pieces = list[tuple[float, int]]


def run(*pieces: Pieces, seconds: float, tokens: int = 40) -> Run:
    ids = tuple(range(tokens))
    served = [Served("", 0.0, seconds, tokens=tokens, rounds=tokens, token_ids=ids, pieces=tuple(p)) for p in pieces]
    return Run(served, seconds)


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

"""Test the report of an overload: requests admitted, requests refused, the time to recover."""

import pytest

from bench.clients.load_report import Served
from bench.clients.overload import by_phase, is_refused, recovered_s

REFUSED = "too many requests wait; try again in 2 s"


def one(sent_s: float, total_s: float, error: str | None = None) -> Served:
    return Served("code", sent_s, sent_s + total_s, sent_s + 0.1, tokens=5, rounds=5, error=error)


def test_refusals_are_no_failures_and_no_answers() -> None:
    served = [one(1.0, 1.0), one(11.0, 3.0), one(12.0, 0.01, REFUSED), one(13.0, 5.0, "lost"), one(21.0, 1.0)]
    found = by_phase(served, 10.0)
    assert [found[phase]["refused"] for phase in ("before", "overload", "after")] == [0, 1, 0]
    assert [found[phase]["failed"] for phase in ("before", "overload", "after")] == [0, 1, 0]
    assert found["overload"]["refused_s"]["p99"] == pytest.approx(0.01)
    assert found["overload"]["total_s"]["p50"] == pytest.approx(3.0)
    assert [is_refused(x) for x in served] == [False, False, True, False, False]


def test_recovery_takes_several_requests_in_a_row_as_fast_as_before() -> None:
    before = [one(i, 1.0) for i in range(10)]
    slow = [one(20.0 + i / 10, 4.0) for i in range(8)]
    lucky = [one(21.05, 1.0), one(21.5, 4.0)]
    assert recovered_s([*before, *slow, *lucky, *(one(23.0 + i, 1.2) for i in range(6))], 10.0) == 3.0
    assert recovered_s([*before, *slow, *lucky], 10.0) is None

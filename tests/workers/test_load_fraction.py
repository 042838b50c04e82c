"""Test that a process's load is the part of the time in which it works."""

import pytest

from workers.heartbeat import LoadFraction


def settled(parts: list[tuple[float, bool]], rounds: int = 30) -> float:
    """Return the fraction after many rounds of these pieces, (seconds, is it work), read after each round."""
    fraction, now_s, found = LoadFraction(), 100.0, 0.0
    for _ in range(rounds):
        for seconds, is_work in parts:
            (fraction.begin_work if is_work else fraction.end_work)(now_s)
            now_s += seconds
        fraction.end_work(now_s)
        found = fraction.read(now_s)
    return found


@pytest.mark.parametrize(
    ("parts", "busy"), [([(0.5, False)], 0.0), ([(0.5, True)], 1.0), ([(0.1, True), (0.3, False)], 0.25)]
)
def test_load_is_the_part_of_the_time_spent_working(parts: list[tuple[float, bool]], busy: float) -> None:
    assert settled(parts) == pytest.approx(busy, abs=0.01)


def test_work_that_has_not_ended_counts_and_counts_once() -> None:
    fraction = LoadFraction()
    fraction.read(0.0)
    fraction.begin_work(0.0)
    for i in range(1, 30):
        assert fraction.read(0.5 * i) <= 1.0
    assert fraction.read(15.0) > 0.99
    fraction.end_work(15.0)
    for i in range(30):
        found = fraction.read(15.5 + 0.5 * i)
    assert found < 0.01, "it is forgotten within seconds"


def test_optional_work_does_not_count() -> None:
    fraction = LoadFraction()
    for i in range(30):
        fraction.begin_work(float(i))
        fraction.mark_idle()
        fraction.end_work(i + 0.9)
        assert fraction.read(i + 1.0) == 0.0

"""How busy a process says it is."""

import pytest

from workers.heartbeat import LoadFraction


def settled(parts: list[tuple[float, bool]], rounds: int = 30) -> float:
    """The share after many repetitions of these pieces of time, (seconds, is it work), with a look after each round."""
    share, now_s, found = LoadFraction(), 100.0, 0.0
    for _ in range(rounds):
        for seconds, is_work in parts:
            share.toggle(is_work, now_s)
            now_s += seconds
        share.toggle(False, now_s)
        found = share.read(now_s)
    return found


@pytest.mark.parametrize(
    ("parts", "busy"), [([(0.5, False)], 0.0), ([(0.5, True)], 1.0), ([(0.1, True), (0.3, False)], 0.25)]
)
def test_it_is_the_part_of_the_time_in_which_it_worked(parts: list[tuple[float, bool]], busy: float) -> None:
    assert settled(parts) == pytest.approx(busy, abs=0.01)


def test_work_that_has_not_ended_counts_and_counts_once() -> None:
    share = LoadFraction()
    share.read(0.0)
    share.toggle(True, 0.0)
    for i in range(1, 30):
        assert share.read(0.5 * i) <= 1.0
    assert share.read(15.0) > 0.99
    share.toggle(False, 15.0)
    for i in range(30):
        found = share.read(15.5 + 0.5 * i)
    assert found < 0.01, "it is forgotten within seconds"


def test_what_nobody_waits_for_is_no_work() -> None:
    share = LoadFraction()
    for i in range(30):
        share.toggle(True, float(i))
        share.mark_idle()
        share.toggle(False, i + 0.9)
        assert share.read(i + 1.0) == 0.0

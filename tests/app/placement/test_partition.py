"""Cores are kept apart for verifying and drafting, and their interference is measured."""

import os
import threading
import time
from types import SimpleNamespace

import pytest

from app.config import Settings
from app.errors import InstanceError
from app.placement.interference import measure_interference
from app.placement.partition import Cores, Partition, cores, divided_cores, units_of, within

several = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2, reason="no two cores to keep apart"
)


@several
def test_sides_share_all_cores_or_none() -> None:
    shared = divided_cores(units_of(Settings()))
    assert shared.verify == shared.draft == Cores(cores()) and not shared.is_real
    apart = divided_cores(units_of(Settings().changed(partition=1)))
    assert apart.is_real and (*apart.verify.places, *apart.draft.places) == cores() and len(apart.draft.places) == 1
    assert apart.about() == {"verify_cores": [*cores()[:-1]], "draft_cores": [cores()[-1]]}
    limited = within(Settings().changed(partition=1, verify_threads=64, draft_threads=64), apart)
    assert (limited.verify_threads, limited.draft_threads) == (len(apart.verify.places), 1)


def test_a_partition_that_leaves_the_verifier_nothing_is_refused() -> None:
    with pytest.raises(InstanceError, match="leaves verifying none"):
        divided_cores(len(cores()))


@several
def test_a_bound_thread_and_those_it_starts_stay_where_they_are() -> None:
    one = (max(cores()),)
    seen: list[tuple[int, ...]] = []

    def run() -> None:
        Cores(one).enter()
        child = threading.Thread(target=lambda: seen.append(cores()))
        child.start()
        child.join()

    before = cores()
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [one] and cores() == before != one


class Spent(threading.local):
    """Seconds that work has taken, of each thread by itself."""

    s = 0.0


SPENT = Spent()


class Beside:
    """Work that takes three times as long, by `SPENT`, while the other side is at work."""

    def __init__(self) -> None:
        self.at_work = threading.Event()
        self.other: Beside | None = None

    def __call__(self) -> None:
        self.at_work.set()
        SPENT.s += 0.03 if self.other and self.other.at_work.is_set() else 0.01
        time.sleep(0.01)
        self.at_work.clear()


def test_interference_tells_the_side_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.placement.interference.time", SimpleNamespace(perf_counter=lambda: SPENT.s))
    everywhere = Partition(Cores(cores()), Cores(cores()))
    alone = measure_interference(Beside(), Beside(), everywhere, everywhere)
    assert alone.verify_slowdown < 1.5 and alone.draft_slowdown < 1.5
    verify, draft = Beside(), Beside()
    verify.other = draft
    slowed = measure_interference(verify, draft, everywhere, everywhere)
    assert slowed.verify_slowdown > 1.5 > slowed.draft_slowdown

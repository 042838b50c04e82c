"""Measure how far drafting and verifying slow each other down where both run in one process.

A piece of work of each side goes in, two ratios come out. Caches and memory are shared, so it is
measured, not assumed. Knows neither models nor devices.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

from app.placement.partition import Partition, Side

PASSES = 7
Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Interference:
    """Each side's time beside the other over its time alone, there or on the whole machine; 1: no slowdown."""

    verify_slowdown: float
    draft_slowdown: float


def measure_interference(verify: Work, draft: Work, sides: Partition, alone: Partition | None = None) -> Interference:
    """Time a piece of work of each side, alone and beside the other.

    Each is called from a thread of its own that has entered its side; for the time alone that of
    `alone`, if that is given.
    """
    alone = alone or sides
    verify_s, draft_s = _seconds(verify, alone.verify), _seconds(draft, alone.draft)
    with _at_work(draft, sides.draft):
        beside_draft_s = _seconds(verify, sides.verify)
    with _at_work(verify, sides.verify):
        beside_verify_s = _seconds(draft, sides.draft)
    return Interference(beside_draft_s / verify_s, beside_verify_s / draft_s)


def _seconds(work: Work, side: Side) -> float:
    """Return the median seconds of one call, in a thread of its own."""
    seconds: list[float] = []

    def run() -> None:
        side.enter()
        work()
        for _ in range(PASSES):
            started = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - started)

    thread = threading.Thread(target=run, name="isolation")
    thread.start()
    thread.join()
    return median(seconds)


@contextmanager
def _at_work(work: Work, side: Side) -> Iterator[None]:
    """Run the work over and over in a thread, as long as the block lasts."""
    done = threading.Event()

    def run() -> None:
        side.enter()
        while not done.is_set():
            work()

    thread = threading.Thread(target=run, name="isolation")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()

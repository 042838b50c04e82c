"""Does drafting slow verifying down, where both run in one process? Measured, since caches and memory are shared."""

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
    """How many times longer each side takes beside the other than alone; 1: it notices nothing."""

    verify_slowdown: float
    draft_slowdown: float


def measure_interference(verify: Work, draft: Work, sides: Partition) -> Interference:
    """Time a piece of work of each side, called from threads that are on their side, alone and beside the other."""
    verify_s, draft_s = _seconds(verify, sides.verify), _seconds(draft, sides.draft)
    with _at_work(draft, sides.draft):
        beside_draft_s = _seconds(verify, sides.verify)
    with _at_work(verify, sides.verify):
        beside_verify_s = _seconds(draft, sides.draft)
    return Interference(beside_draft_s / verify_s, beside_verify_s / draft_s)


def _seconds(work: Work, side: Side) -> float:
    """Median of one call, in a thread of its own."""
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
    """In the block, a thread does the work over and over."""
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

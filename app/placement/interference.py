"""Measure how far drafting and verifying slow each other down in one process, which share caches and memory.

FASER's controller starts from it (`app.speculation.joint`).
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median

from app.placement.partition import Partition, Side

PASSES = 7
Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Interference:
    """Each side's time beside the other over its time alone."""

    verify_slowdown: float
    draft_slowdown: float


def measure_interference(verify: Work, draft: Work, sides: Partition, alone: Partition) -> Interference:
    """Time each side's work beside the other on `sides`, over its time alone on its side of `alone`."""
    verify_s, draft_s = _seconds(verify, alone.verify), _seconds(draft, alone.draft)
    return Interference(
        _seconds(verify, sides.verify, beside=(draft, sides.draft)) / verify_s,
        _seconds(draft, sides.draft, beside=(verify, sides.verify)) / draft_s,
    )


def _seconds(work: Work, side: Side, beside: tuple[Work, Side] | None = None) -> float:
    done = threading.Event()

    def load(other: Work, other_side: Side) -> None:
        other_side.enter()
        while not done.is_set():
            other()

    def timed() -> float:
        side.enter()
        work()
        seconds: list[float] = []
        for _ in range(PASSES):
            began_s = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - began_s)
        return median(seconds)

    with ThreadPoolExecutor(2, thread_name_prefix="isolation") as threads:
        try:
            if beside is not None:
                threads.submit(load, *beside)
            return threads.submit(timed).result()
        finally:
            done.set()

"""Tell the time to segments that measure or wait: the system's, or a simulation's."""

import time
from typing import Protocol


class Clock(Protocol):
    """Name the functions of the module `time` that segments use, in seconds."""

    def time(self) -> float: ...
    def monotonic(self) -> float: ...
    def perf_counter(self) -> float: ...


SYSTEM: Clock = time

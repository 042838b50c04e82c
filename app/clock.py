"""Tell the time: the system's, or a simulation's."""

import time
from typing import Protocol


class Clock(Protocol):
    def time(self) -> float: ...
    def monotonic(self) -> float: ...
    def perf_counter(self) -> float: ...
    def thread_time(self) -> float: ...


SYSTEM: Clock = time

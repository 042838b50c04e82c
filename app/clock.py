"""What time it is, for segments that measure what things take or wait for them: the system's, or a simulation's."""

import time
from typing import Protocol


class Clock(Protocol):
    """The part of the module `time` that segments use; seconds all."""

    def time(self) -> float: ...
    def monotonic(self) -> float: ...
    def perf_counter(self) -> float: ...


SYSTEM: Clock = time

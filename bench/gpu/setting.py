"""What all sections share: the device, its clock, what was found before, and how long they may take."""

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

Figures = dict[str, Any]
COLD_BYTES = 2 << 30  # written before a cold timing: empties the cache, and the host gets ahead of the device meanwhile
WARM_UPS = 2


@dataclass(slots=True)
class Setting:
    """Given to each section."""

    device: torch.device
    is_quick: bool
    folder: Path | None  # of a real model
    figures: Figures  # of the sections before
    ends_s: float = 0.0  # when this section should

    @property
    def runs(self) -> int:
        """Timings a median is of. Triton's interpreter takes its time for each."""
        if self.device.type != "cuda":
            return 1
        return 3 if self.is_quick else 15

    @property
    def dtype(self) -> torch.dtype:
        """What models run in. Triton's interpreter is wrong with bfloat16."""
        return torch.bfloat16 if self.device.type == "cuda" else torch.float32

    def has_time(self) -> bool:
        return time.perf_counter() < self.ends_s

    def left_s(self) -> float:
        return max(0.0, self.ends_s - time.perf_counter())

    def machine(self, name: str) -> float:
        """A figure of the first section."""
        return float(self.figures["machine"][name])

    def device_ms(self, run: Callable[[], Any], *, times: int = 1, is_cold: bool = False) -> float:
        """Median of the device's own time for `run`, called `times` times in a row; the host may not read back.

        Cold: with nothing of the last run in the cache.
        """
        if self.device.type != "cuda":
            return self.wall_ms(run)
        for _ in range(WARM_UPS):
            run()
        cold = torch.empty(COLD_BYTES if is_cold else 0, dtype=torch.uint8, device=self.device)
        pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(self.runs)]
        torch.cuda.synchronize()
        for start, end in pairs:
            cold.zero_()
            start.record()
            for _ in range(times):
                run()
            end.record()
        torch.cuda.synchronize()
        return statistics.median(start.elapsed_time(end) / times for start, end in pairs)

    def wall_ms(self, run: Callable[[], Any]) -> float:
        """Median of the host's time for `run`, until the device is done too."""

        def finished() -> None:
            run()
            self.wait()

        for _ in range(WARM_UPS if self.device.type == "cuda" else 1):
            finished()
        return statistics.median(_host_ms(finished) for _ in range(self.runs))

    def wait(self) -> None:
        """Until the device has done all it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def free(self) -> None:
        """Give the device's memory back that nothing refers to any more."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def setting_of(device: str, is_quick: bool, folder: Path | None, figures: Figures) -> Setting:
    """Ends the program where there is no such device."""
    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit(
            "torch sees no GPU; without one: TRITON_INTERPRET=1 python bench/gpu/run.py --quick --device cpu"
        )
    if device == "cpu":
        torch.set_num_threads(1)  # on matrices this small a second thread only costs
    return Setting(torch.device(device), is_quick, folder, figures)


def _host_ms(run: Callable[[], Any]) -> float:
    started = time.perf_counter()
    run()
    return (time.perf_counter() - started) * 1e3

"""Hold what all sections share: the device, its clock, earlier figures, and the time left."""

import gc
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

Figures = dict[str, Any]
COLD_BYTES = 2 << 30  # written before a cold timing: empties the cache, and the host gets ahead of the device meanwhile
WARM_UPS = 2
DRAFTED = 4  # tokens of a scripted draft, in the serving loop


@dataclass(slots=True)
class Setting:
    """The device and limits of a run, given to each section; `ends_s` on `time.perf_counter`."""

    device: torch.device
    is_quick: bool
    folder: Path | None  # of a real model
    figures: Figures  # of the sections before
    ends_s: float = 0.0  # when this section should end

    @property
    def runs(self) -> int:
        """Return the timings for a median; one in Triton's interpreter, which is slow."""
        if self.device.type != "cuda":
            return 1
        return 3 if self.is_quick else 15

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of models: bfloat16, but float32 in Triton's interpreter, which is wrong with bfloat16."""
        return torch.bfloat16 if self.device.type == "cuda" else torch.float32

    def has_time(self) -> bool:
        """Tell whether the section's time has not run out."""
        return time.perf_counter() < self.ends_s

    def left_s(self) -> float:
        """Return the section's seconds left, at least 0."""
        return max(0.0, self.ends_s - time.perf_counter())

    def lines(self, points: Iterable[Figures], measure: Callable[..., Figures]) -> list[Figures]:
        """Measure each point, whose fields are the arguments, while there is time; print and return a line of each."""
        found = []
        for point in points:
            found.append(point | (measure(**point) if self.has_time() else {"left_out": True}))
            print(found[-1], flush=True)
            self.free()
        return found

    def machine(self, name: str) -> float:
        """Return a figure of the machine's section. Raises KeyError."""
        return float(self.figures["machine"][name])

    def device_ms(self, run: Callable[[], Any], *, times: int = 1, is_cold: bool = False) -> float:
        """Return the median of the device's own time for `run`, ms, called `times` times in a row.

        `run` may not read results back on the host. Cold: with nothing of the last run in the device's cache.
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
        """Return the median of the host's time for `run`, ms, until the device is done too."""

        def finished() -> None:
            run()
            self.wait()

        for _ in range(WARM_UPS if self.device.type == "cuda" else 1):
            finished()
        return statistics.median(_host_ms(finished) for _ in range(self.runs))

    def wait(self) -> None:
        """Wait until the device has done all its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def free(self) -> None:
        """Give back the device's memory that is no longer referred to."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def setting_of(device: str, is_quick: bool, folder: Path | None, figures: Figures) -> Setting:
    """Make the setting of a run. Raises SystemExit where there is no such device."""
    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit(
            "torch sees no GPU; without one: TRITON_INTERPRET=1 python bench/gpu/run.py --quick --device cpu"
        )
    if device == "cpu":
        from kernels.interpreter import prepare_once  # reads TRITON_INTERPRET, which a GPU's run leaves unset

        prepare_once()
        torch.set_num_threads(1)  # on matrices this small a second thread only costs
    return Setting(torch.device(device), is_quick, folder, figures)


def _host_ms(run: Callable[[], Any]) -> float:
    started = time.perf_counter()
    run()
    return (time.perf_counter() - started) * 1e3

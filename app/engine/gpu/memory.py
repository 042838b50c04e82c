"""Find a GPU's free memory for pages, beside weights and steps."""

import gc
from collections.abc import Callable
from typing import Protocol

import torch


class Allocator(Protocol):
    def settle(self) -> None: ...

    def free_bytes(self) -> int: ...


class Rehearsed(Protocol):
    @property
    def page_bytes(self) -> int: ...


class DeviceMemory:
    def __init__(self, device: torch.device) -> None:
        self._device = device

    def settle(self) -> None:
        gc.collect()  # a loaded model's modules refer to each other, and hold weights that were joined since
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()

    def free_bytes(self) -> int:
        return torch.cuda.mem_get_info(self._device)[0]


def free_for_pages(memory: Allocator, rehearse: Callable[[], Rehearsed]) -> int:
    """Return the bytes free beside the weights and `rehearse`, a run of the largest steps."""
    memory.settle()
    before = memory.free_bytes()
    rehearsed = rehearse()
    step_bytes = before - memory.free_bytes() - rehearsed.page_bytes
    del rehearsed
    memory.settle()
    return max(0, memory.free_bytes() - max(0, step_bytes))

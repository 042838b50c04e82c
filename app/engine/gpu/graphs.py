"""Capture steps of a few fixed sizes once and replay them: hundreds of kernels then cost one
launch.

A step runs in the smallest tier that holds it. Tiers are kept apart by packed rows, by sequences,
by the rows of a sequence and by its keys, since a launch's grid is laid out when it is captured:
what a step does not need of it are programs that end at once, yet thousands of them cost as much as
a layer's work. What no tier holds, prompts above all, runs eagerly.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from threading import Lock

import torch

from app.engine.gpu.input_batch import Arrays, RowTensors, Size, fields, rows_of
from app.engine.gpu.layers import Method, Pages
from app.engine.gpu.step import StepOutput, run
from app.engine.gpu.weights import Weights

ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
NARROW_ROWS = (1, 4, 8, 16, 32, 64)  # of a sequence; 16 folded rows are one tile of attention
KEYS_GROW = 4  # times, from tier to tier
LEAST_KEYS = 1024
_CAPTURING = Lock()  # a capture begins with waiting for the whole device, which spoils another thread's
WARM_UPS = 2  # runs before a capture: Triton compiles, cuBLAS takes its workspace


@dataclass(frozen=True, slots=True)
class Tier:
    """A captured step: fill and send the arrays, replay, read the result."""

    arrays: Arrays
    rows: RowTensors
    result: StepOutput
    replay: Callable[[], None]


class Graphs:
    """The tiers captured so far."""

    def __init__(self, weights: Weights, pages: Pages, method: Method, capacity_tokens: int) -> None:
        self._weights, self._pages, self._method = weights, pages, method
        self._capacity_tokens = capacity_tokens
        self._tiers: dict[Size, Tier] = {}
        self._pool = torch.cuda.graph_pool_handle() if pages.keys.is_cuda else None

    def tier(self, size: Size) -> Tier | None:
        """Return the tier that holds a step of this size, captured now if need be; None for what
        runs eagerly.

        Capturing overwrites nothing: its rows have no slot to write to.
        """
        if size.wide_rows or size.rows > ROWS[-1]:
            return None
        rounded = self._round(size)
        if rounded not in self._tiers:
            self._tiers[rounded] = self._capture(rounded)
        return self._tiers[rounded]

    def _round(self, size: Size) -> Size:
        rows = ROWS[bisect_left(ROWS, size.rows)]
        sequences = min(rows, 1 << (size.sequences - 1).bit_length())
        keys = LEAST_KEYS
        while keys < size.keys:
            keys *= KEYS_GROW
        narrow = NARROW_ROWS[bisect_left(NARROW_ROWS, size.narrow_rows)]
        return Size(rows, sequences, min(narrow, rows), 0, min(keys, self._capacity_tokens), None)

    def _capture(self, size: Size) -> Tier:
        arrays = Arrays(fields(size, self._pages.keys.shape[2]), self._pages.keys.device)
        arrays.device["slots"].fill_(-1)
        rows = rows_of(arrays, size)
        step = partial(run, self._weights, self._pages, rows, self._method)
        if self._pool is None:
            return _uncaptured(arrays, rows, step)
        with _CAPTURING:
            return self._captured(arrays, rows, step, _stream())

    def _captured(
        self, arrays: Arrays, rows: RowTensors, step: Callable[[], StepOutput], side: torch.cuda.Stream
    ) -> Tier:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # On the stream that has its workspaces by now; other threads, a drafter's say, may launch meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, stream=side, capture_error_mode="thread_local"):
            result = step()
        return Tier(arrays, rows, result, graph.replay)


def _stream() -> torch.cuda.Stream:
    """Return a stream to capture on: nothing can be captured on the default one.

    Kernels captured on a stream of a part of the device's multiprocessors
    (`app.engine.gpu.sm_partition`) run there whenever they are replayed.
    """
    current = torch.cuda.current_stream()
    return torch.cuda.Stream() if current == torch.cuda.default_stream() else current


def _uncaptured(arrays: Arrays, rows: RowTensors, step: Callable[[], StepOutput]) -> Tier:
    """Return a tier whose replay is a run, with its results copied to one place: Triton's
    interpreter has no graphs."""
    result = step()

    def replay() -> None:
        fresh = step()
        result.logits.copy_(fresh.logits)
        result.chosen.copy_(fresh.chosen)

    return Tier(arrays, rows, result, replay)

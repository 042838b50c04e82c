"""Capture steps of a few fixed sizes once and replay them: hundreds of kernels then cost one
launch.

A step runs in the smallest tier that holds it. Tiers are kept apart by packed rows, by sequences,
by the rows of a sequence and by its keys, since a launch's grid is laid out when it is captured:
what a step does not need of it are programs that end at once, yet thousands of them cost as much as
a layer's work. What no tier holds, prompts above all, runs eagerly.

All tiers are captured on one stream, into one pool, and leave their logits in one buffer: torch's
allocator gives a block again only to the stream that it was made for. So they share the memory of
the largest, if it is captured first.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from threading import Lock

import torch

from app.engine.gpu.input_batch import NOWHERE, Arrays, RowTensors, Size, fields, rows_of
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

    def __init__(self, weights: Weights, pages: Pages, method: Method, longest_tokens: int) -> None:
        """Capture nothing yet. `longest_tokens`: of a sequence in a tier, its new rows included."""
        self._weights, self._pages, self._method = weights, pages, method
        self._longest_tokens = longest_tokens
        self._tiers: dict[Size, Tier] = {}
        self._logits = weights.head.weight.new_empty(ROWS[-1], len(weights.head.weight))
        self._pool = torch.cuda.graph_pool_handle() if pages.keys.is_cuda else None
        # Of failed captures, too: a graph that is freed takes the workspaces of its stream with it, and the others
        # captured there go on using them.
        self._graphs: list[torch.cuda.CUDAGraph] = []

    def capture_largest(self, sequences: int) -> None:
        """Capture the largest tier of steps of up to `sequences`, whose memory all others share."""
        self.tier(Size(ROWS[-1], min(ROWS[-1], sequences), NARROW_ROWS[-1], 0, self._longest_tokens, None))

    def tier(self, size: Size) -> Tier | None:
        """Return the tier that holds a step of this size, captured now if need be; None for what
        runs eagerly.

        Capturing overwrites nothing: its rows have no slot to write to.
        """
        if size.wide_rows or size.rows > ROWS[-1] or size.keys > self._longest_tokens:
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
        return Size(rows, sequences, min(narrow, rows), 0, min(keys, self._longest_tokens), None)

    def _capture(self, size: Size) -> Tier:
        arrays = Arrays(fields(size, self._pages.keys.shape[2]), self._pages.keys.device)
        arrays.device["slots"].fill_(NOWHERE)
        rows = rows_of(arrays, size)
        logits = self._logits[: size.rows]

        def step() -> StepOutput:
            found = run(self._weights, self._pages, rows, self._method)
            return StepOutput(logits.copy_(found.logits), found.chosen)

        if self._pool is None:
            return _uncaptured(arrays, rows, step)
        with _CAPTURING:
            return self._captured(arrays, rows, step)

    def _captured(self, arrays: Arrays, rows: RowTensors, step: Callable[[], StepOutput]) -> Tier:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UPS):
                step()
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        self._graphs.append(graph)
        # On the stream that has its workspaces by now; other threads, a drafter's say, may launch meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            result = step()
        return Tier(arrays, rows, result, graph.replay)

    @cached_property
    def _stream(self) -> torch.cuda.Stream:
        """Return the stream that is captured on; made at the first capture, by the thread that
        replays.

        Nothing can be captured on the default one. Kernels captured on a stream of a part of the
        device's multiprocessors (`app.engine.gpu.sm_partition`) run there whenever they are
        replayed.
        """
        current = torch.cuda.current_stream()
        return torch.cuda.Stream() if current == torch.cuda.default_stream() else current


def _uncaptured(arrays: Arrays, rows: RowTensors, step: Callable[[], StepOutput]) -> Tier:
    """Return a tier whose replay is a run, with its tokens copied to one place: Triton's interpreter
    has no graphs."""
    result = step()

    def replay() -> None:
        result.chosen.copy_(step().chosen)

    return Tier(arrays, rows, result, replay)

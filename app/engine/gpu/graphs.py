"""Capture steps of a few fixed numbers of rows at the start, and replay each as one launch.

A step runs in the smallest tier that holds it, else eagerly. All tiers share one stream and pool, the largest first:
torch's allocator reuses a block only on its own stream.
"""

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

import torch

from app.engine.gpu.input_batch import TIERS, Arrays, RowTensors, Size, fields, rows_of, tier_size
from app.engine.gpu.layers import Method, Pages
from app.engine.gpu.step import StepOutput, run
from app.engine.gpu.weights import Weights
from kernels.host.step_rows import NOWHERE

PROGRAMS = 2  # that share attention's items, for each multiprocessor
INTERPRETED = 8  # in all, where programs run one after the other; so few that each has several items
_CAPTURING = Lock()  # a capture begins with waiting for the whole device, which spoils another thread's
WARM_UPS = 2  # runs before a capture: Triton compiles, cuBLAS takes its workspace


@dataclass(frozen=True, slots=True)
class Tier:
    size: Size
    arrays: Arrays
    rows: RowTensors
    result: StepOutput
    replay: Callable[[], None]


class Graphs:
    @torch.inference_mode()
    def __init__(
        self,
        weights: Weights,
        pages: Pages,
        page_table: torch.Tensor,
        method: Method,
        longest_tokens: int,
        *,
        has_own_streams: bool = False,
    ) -> None:
        """Capture all tiers in the thread that replays.

        page_table: (R, N) int32, on the device. `longest_tokens`: new rows included. `has_own_streams`: for benchmarks.
        """
        self._weights, self._pages, self._page_table, self._method = weights, pages, page_table, method
        self._longest_tokens = longest_tokens
        self._logits = weights.head.weight.new_empty(TIERS[-1], len(weights.head.weight), dtype=torch.float32)
        self._capture = self._captured if pages.keys.is_cuda else _uncaptured
        if pages.keys.is_cuda:
            self._pool = torch.cuda.graph_pool_handle()
            current = torch.cuda.current_stream()
            # Nothing can be captured on the default one.
            self._stream = torch.cuda.Stream() if current == torch.cuda.default_stream() else current
            self._has_own_streams = has_own_streams
        self._tiers = {rows: self._tier(rows) for rows in reversed(TIERS)}

    def tier(self, size: Size) -> Tier | None:
        tier = self._tiers.get(size.tier)
        return tier if tier is not None and tier.size.holds(size) else None

    def _tier(self, rows: int) -> Tier:
        cut = self._method.cut
        size = tier_size(rows, self._longest_tokens, cut, programs_of(self._pages.keys.device))
        arrays = Arrays(fields(size, self._pages.keys.shape[2]), self._pages.keys.device, buffers=2)
        arrays.device["slots"].fill_(NOWHERE)
        tensors = rows_of(arrays, size, cut, self._page_table)
        logits = self._logits[:rows]

        def step() -> StepOutput:
            found = run(self._weights, self._pages, tensors, self._method)
            return StepOutput(logits.copy_(found.logits), found.chosen)

        result, replay = self._capture(logits, step)
        return Tier(size, arrays, tensors, result, replay)

    def _captured(self, logits: torch.Tensor, step: Callable[[], StepOutput]) -> tuple[StepOutput, Callable[[], None]]:
        stream = torch.cuda.Stream() if self._has_own_streams else self._stream
        with _CAPTURING:
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(WARM_UPS):
                    step()
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            # On the stream that has its workspaces by now; other threads, a drafter's say, may launch meanwhile.
            with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
                result = step()
        return result, graph.replay


def programs_of(device: torch.device) -> int:
    if device.type != "cuda":
        return INTERPRETED
    return PROGRAMS * int(torch.cuda.get_device_properties(device).multi_processor_count)


def _uncaptured(logits: torch.Tensor, step: Callable[[], StepOutput]) -> tuple[StepOutput, Callable[[], None]]:
    result = StepOutput(logits, logits.new_zeros((2, len(logits)), dtype=torch.int32))

    def replay() -> None:
        result.chosen.copy_(step().chosen)

    return result, replay

"""Test how tiers are captured, with a stand-in for CUDA: one stream, one pool, one buffer, the largest first."""

import contextlib
import gc
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

graphs = pytest.importorskip("app.engine.gpu.graphs", reason="Triton is not made for this machine")
from app.engine.gpu.input_batch import Size  # noqa: E402
from app.engine.gpu.step import StepOutput  # noqa: E402

VOCAB = 11
LONGEST = 5000


class Stream:
    """A stream that waits for nothing."""

    def wait_stream(self, other: "Stream") -> None:
        pass


class Graph:
    """A captured step."""

    def replay(self) -> None:
        pass


class Cuda:
    """Note every capture: its rows, its stream and its pool."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.streams: list[Stream] = []
        self.captures: list[tuple[int, Stream, str]] = []
        self.alive: weakref.WeakSet[Graph] = weakref.WeakSet()
        self.default = self.current = Stream()
        self.rows = 0
        self.fails = False
        for name in ("Stream", "stream", "graph", "current_stream", "default_stream"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
        monkeypatch.setattr(graphs, "run", self.run)

    def Stream(self) -> Stream:
        self.streams.append(Stream())
        return self.streams[-1]

    def current_stream(self) -> Stream:
        return self.current

    def default_stream(self) -> Stream:
        return self.default

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        yield

    @contextlib.contextmanager
    def graph(self, graph: Graph, pool: str, stream: Stream, capture_error_mode: str) -> Iterator[None]:
        yield
        self.captures.append((self.rows, stream, pool))
        self.alive.add(graph)
        if self.fails:
            raise torch.cuda.OutOfMemoryError

    def run(self, weights: Any, pages: Any, rows: Any, method: Any) -> StepOutput:
        self.rows = len(rows.ids)
        return StepOutput(
            torch.full((self.rows, VOCAB), float(self.rows)), torch.zeros(2, self.rows, dtype=torch.int32)
        )


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    return Cuda(monkeypatch)


def made() -> Any:
    """Make graphs over pages that claim to lie on a GPU."""
    keys = SimpleNamespace(is_cuda=True, shape=(1, 2, 16, 1, 8), device=torch.device("cpu"))
    weights = SimpleNamespace(head=SimpleNamespace(weight=torch.zeros(VOCAB, 8)))
    return graphs.Graphs(weights, SimpleNamespace(keys=keys), None, LONGEST)


def step(rows: int, keys: int = 100) -> Size:
    return Size(rows, min(rows, 4), 1, 0, keys, None)


def test_all_tiers_share_stream_pool_and_buffer(cuda: Cuda) -> None:
    tiers = made()
    results = [tiers.tier(step(rows)).result for rows in (1, 3, 40)]
    assert [rows for rows, _, _ in cuda.captures] == [1, 4, 48]
    assert {stream for _, stream, _ in cuda.captures} == set(cuda.streams) and len(cuda.streams) == 1
    assert {pool for _, _, pool in cuda.captures} == {"pool"}
    assert len({result.logits.data_ptr() for result in results}) == 1
    assert [tuple(result.logits.shape) for result in results] == [(1, VOCAB), (4, VOCAB), (48, VOCAB)]
    assert tiers.tier(step(2)) is not tiers.tier(step(3)) and tiers.tier(step(3)) is tiers.tier(step(4))


def test_a_stream_of_a_part_of_the_gpu_is_captured_on_itself(cuda: Cuda) -> None:
    """The threads' streams are set after the runner was built."""
    tiers = made()
    cuda.current = Stream()
    tiers.tier(step(1))
    assert [stream for _, stream, _ in cuda.captures] == [cuda.current] and not cuda.streams


def test_the_largest_tier_holds_every_other(cuda: Cuda) -> None:
    tiers = made()
    tiers.capture_largest(256)
    assert [rows for rows, _, _ in cuda.captures] == [graphs.ROWS[-1]]
    tiers.tier(Size(graphs.ROWS[-1], 256, graphs.NARROW_ROWS[-1], 0, LONGEST, None))
    assert len(cuda.captures) == 1, "it is there already"


def test_a_failed_capture_leaves_its_graph(cuda: Cuda) -> None:
    """A graph that is freed takes the stream's workspaces with it, which the others go on using."""
    tiers = made()
    tiers.tier(step(1))
    cuda.fails = True
    with contextlib.suppress(torch.cuda.OutOfMemoryError):  # `raises` would keep the frame, and so the graph
        tiers.tier(step(8))
    gc.collect()
    assert len(cuda.captures) == len(cuda.alive) == 2
    cuda.fails = False
    assert tiers.tier(step(8)) is not None


def test_steps_beyond_all_tiers_run_eagerly(cuda: Cuda) -> None:
    tiers = made()
    assert tiers.tier(Size(80, 1, 0, 80, 100, None)) is None  # a prompt's chunk
    assert tiers.tier(step(513)) is None
    assert tiers.tier(step(1, keys=LONGEST + 1)) is None  # a request from before the settings allowed less
    assert not cuda.captures

"""Test how tiers are captured, with a stand-in for CUDA: at the start, on one stream, into one pool and buffer."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

graphs = pytest.importorskip("app.engine.gpu.graphs", reason="Triton is not made for this machine")
from app.engine.gpu.input_batch import CHANGES, PARTS, TIERS, Cut, Size, WorkRoom  # noqa: E402
from app.engine.gpu.step import StepOutput  # noqa: E402
from kernels.attention.ragged_attention import PREFILL, VERIFY  # noqa: E402

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
        self.default = self.current = Stream()
        self.rows = 0
        self.launches: list[tuple[int, int]] = []  # attention's programs, and the room for slices
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

    def run(self, weights: Any, pages: Any, rows: Any, method: Any) -> StepOutput:
        self.rows = len(rows.ids)
        (part,) = rows.parts
        self.launches.append((part.work.num_programs, part.work.num_parts))
        return StepOutput(
            torch.full((self.rows, VOCAB), float(self.rows)), torch.zeros(2, self.rows, dtype=torch.int32)
        )


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    return Cuda(monkeypatch)


def made(longest: int = LONGEST, **rest: Any) -> Any:
    """Make graphs over pages that claim to lie on a GPU."""
    keys = SimpleNamespace(is_cuda=True, shape=(1, 2, 16, 1, 8), device=torch.device("cpu"))
    weights = SimpleNamespace(head=SimpleNamespace(weight=torch.zeros(VOCAB, 8)))
    method = SimpleNamespace(cut=Cut(4, VERIFY, PREFILL))
    return graphs.Graphs(weights, SimpleNamespace(keys=keys), torch.zeros(2, 2), method, longest, **rest)


def step(rows: int, items: int = 1, parts: int = 0) -> Size:
    return Size(rows, min(rows, 4), WorkRoom(items, parts), None, rows)


def test_all_tiers_are_captured_at_the_start_the_largest_first(cuda: Cuda) -> None:
    """None is captured later: clients would wait."""
    tiers = made()
    assert [rows for rows, _, _ in cuda.captures] == [*reversed(TIERS)]
    assert len(TIERS) <= 20
    assert {stream for _, stream, _ in cuda.captures} == set(cuda.streams) and len(cuda.streams) == 1
    assert {pool for _, _, pool in cuda.captures} == {"pool"}
    assert {programs for programs, _ in cuda.launches} == {graphs.programs_of(torch.device("cpu"))}, (
        "whatever the batch"
    )
    found = [tiers.tier(step(rows)) for rows in (1, 3, 40)]
    assert [tuple(tier.result.logits.shape) for tier in found] == [(1, VOCAB), (4, VOCAB), (48, VOCAB)]
    assert len({tier.result.logits.data_ptr() for tier in found}) == 1
    assert tiers.tier(step(2)) is not tiers.tier(step(3)) and tiers.tier(step(3)) is tiers.tier(step(4))
    assert len(cuda.captures) == len(TIERS)


def test_each_may_have_a_stream_of_its_own_to_be_measured(cuda: Cuda) -> None:
    made(has_own_streams=True)
    assert len({stream for _, stream, _ in cuda.captures}) == len(TIERS)


def test_a_stream_of_a_part_of_the_gpu_is_captured_on_itself(cuda: Cuda) -> None:
    cuda.current = Stream()
    made()
    assert {stream for _, stream, _ in cuda.captures} == {cuda.current} and not cuda.streams


def test_steps_beyond_all_tiers_run_eagerly(cuda: Cuda) -> None:
    tiers = made()
    assert tiers.tier(Size(80, 1, None, WorkRoom(20, 0), 80)) is None  # a prompt's chunk
    assert tiers.tier(step(513)) is None
    assert tiers.tier(step(1, items=6, parts=6)) is None  # a request from before the settings allowed less
    assert tiers.tier(Size(4, 4, WorkRoom(4, 0), None, 3)) is None  # a short chunk that is not its prompt's last


def test_more_moves_than_rows_take_the_tier_that_has_room_for_them(cuda: Cuda) -> None:
    """Sequences whose trees were accepted may have ended since: others may share their pages."""
    tiers = made()
    assert tiers.tier(replace(step(1), moves=5)) is tiers.tier(step(8))
    assert tiers.tier(replace(step(1), moves=513)) is None


def test_more_changes_of_the_page_table_take_the_tier_that_has_room_for_them(cuda: Cuda) -> None:
    """A long beginning that is found in the cache comes at once."""
    tiers = made()
    spare, each = CHANGES
    for rows, changes in ((1, spare + each), (2, spare + each + 1), (512, spare + 512 * each)):
        found = tiers.tier(replace(step(1), changes=changes))
        assert found is tiers.tier(step(rows)) and len(found.arrays.device["change_at"]) >= changes
    assert tiers.tier(replace(step(1), changes=spare + 512 * each + 1)) is None


def test_the_results_that_wait_to_be_joined_are_bounded(cuda: Cuda) -> None:
    """512 rows of 131,072 keys would have 65,536 slices, a gigabyte in each step of an 8B model."""
    tiers = made(131_072)
    assert max(parts for _, parts in cuda.launches) == PARTS
    assert tiers.tier(step(64, items=2048, parts=PARTS)) is not None
    assert tiers.tier(step(65, items=2080, parts=65 * 128)) is None
    assert all(parts == 5 * rows for rows, (_, parts) in zip(reversed(TIERS), _own_launches(cuda), strict=True))


def _own_launches(cuda: Cuda) -> list[tuple[int, int]]:
    """Return the launches of tiers for LONGEST keys, each capture's last."""
    cuda.launches.clear()
    made()
    return cuda.launches[graphs.WARM_UPS :: graphs.WARM_UPS + 1]

"""Test that a GPU's steps are measured to the largest, and its contexts side by side."""

from types import SimpleNamespace

import pytest
import torch

from app.engine.profile import profiler
from app.engine.profile.gpu_profiler import CHUNK, CONTEXTS, MANY, MANY_ROWS, measure_gpu_costs
from app.engine.profile.profiler import ROWS
from app.state import BatchEntry
from tests import fakes

TOKEN_S, SHARE_S, ROW_TOKEN_S = 5e-7, 4e-8, 2e-9  # alone, of the bandwidth, of computing


class Device:
    """Steps by a clock of their own: flat to 128 rows, contexts as the greater of latency and bandwidth."""

    def __init__(self, capacity_tokens: int) -> None:
        self.capacity_tokens = capacity_tokens
        self.now_s = 0.0
        self.held: dict[int, int] = {}
        self.seen: set[tuple[int, int, int]] = set()

    def forward(self, works: list[BatchEntry]) -> list[SimpleNamespace]:
        rows = [len(work.tokens) + len(work.tree) for work in works]
        assert all(len(work.tree) < 64 for work in works), "a tree fits a mask"
        assert sum(self.held.values()) <= self.capacity_tokens
        self.seen.add((len(works), sum(rows), works[0].start))
        contexts = [work.start for work in works]
        self.now_s += 0.004 + 2e-5 * max(0, sum(rows) - 128)
        self.now_s += max(TOKEN_S * max(contexts), SHARE_S * sum(contexts))
        self.now_s += ROW_TOKEN_S * sum(c * n for c, n in zip(contexts, rows, strict=True))
        return [SimpleNamespace(rows=torch.zeros(1, 5)) for _ in works]

    def try_reserve(self, work: BatchEntry) -> bool:
        self.held[id(work.sequence)] = work.start + len(work.tokens) + len(work.tree)
        return True

    def release(self, sequence: object) -> None:
        self.held.pop(id(sequence), None)

    def cover(self, sequence: object, tokens: int) -> None:
        pass

    def drop(self, work: BatchEntry) -> None:
        pass


def measured(monkeypatch: pytest.MonkeyPatch, capacity_tokens: int, longest: int):
    device = Device(capacity_tokens)
    monkeypatch.setattr(profiler, "time", SimpleNamespace(perf_counter=lambda: device.now_s))
    return device, measure_gpu_costs(device, 5, longest)  # type: ignore[arg-type]


def test_steps_are_measured_to_the_largest_and_contexts_side_by_side(monkeypatch):
    device, costs = measured(monkeypatch, 400_000, 40_000)
    for rows in (*ROWS, *MANY_ROWS, CHUNK):
        assert costs.seconds(rows) == pytest.approx(0.004 + 2e-5 * max(0, rows - 128), rel=0.02)
    assert {(n, n, c) for n in (1, MANY) for c in CONTEXTS} <= device.seen
    assert {(1, CHUNK, c) for c in (0, *CONTEXTS)} <= device.seen
    assert costs.reading == pytest.approx((TOKEN_S, ROW_TOKEN_S, SHARE_S / TOKEN_S), rel=0.05)
    assert not device.held
    reading = costs.reading
    assert reading.step_s([(4096, 1)] * 64) == pytest.approx(64 * 4096 * SHARE_S, rel=0.1), "bandwidth"
    assert reading.step_s([(16384, 1), *[(100, 1)] * 8]) == pytest.approx(16384 * TOKEN_S, rel=0.1), "latency"


@pytest.mark.parametrize(("capacity", "longest"), [(30_000, 12_000), (2_500, 2_400), (800, 512)])
def test_only_what_fits_is_measured(monkeypatch, capacity, longest):
    device, costs = measured(monkeypatch, capacity, longest)
    assert max(start + rows // n for n, rows, start in device.seen) <= longest
    assert all(0.0 < costs.seconds(rows) < 1.0 for rows in (1, 48, 512, 2048))
    assert costs.reading.token_s == pytest.approx(TOKEN_S, rel=0.1)


def test_a_real_runner_is_measured_and_holds_nothing_afterwards():
    runner = fakes.served()
    costs = measure_gpu_costs(runner, fakes.VOCAB, 512)
    assert all(0 < costs.seconds(rows) < 10 for rows in ROWS)
    assert 0.0 < costs.reading.share <= 1.0
    assert runner.pool.num_free == runner.pool.num_pages

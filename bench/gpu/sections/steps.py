"""Time steps, beside the time of reading the weights and the cache alone.

floor = (weights + keys and values) / bandwidth. `gpu_ms` is a captured step's replay by the device's own clock;
`wall_ms` all of `forward`, with filling the arrays, sending them and reading the tokens back; `eager_ms` the same
without a graph. `compute_ms` is the time of the products alone at the measured rate: the floor of large steps.
`kernels_us`, of a few steps: the time of each kernel in one replay, and how often it is launched.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch.profiler import ProfilerActivity, profile

from app.engine.cpu.equivalence import probe
from app.engine.gpu.input_batch import fill, layout_of
from app.engine.gpu.runner import DeviceRunner
from app.engine.gpu.weights import Weights
from app.state import BatchEntry
from bench.gpu.random_models import EIGHT_B, ONE_B, PAGE_TOKENS, TINY, Shape, random_weights, room, runner_of
from bench.gpu.setting import Figures, Setting
from bench.gpu.texts import chain, reserve

PROFILED = 12  # kernels, those of most time
REPLAYS = 4  # between two readings of the clock


@dataclass(frozen=True, slots=True)
class Point:
    """The sizes of one measured step."""

    context: int  # tokens in the cache of each sequence
    batch: int
    drafted: int  # of each sequence, a chain

    @property
    def is_profiled(self) -> bool:
        """Tell whether the kernels of its step are timed one by one."""
        return self.drafted == 0 and self.context <= 512 and self.batch in (1, 8, 64)


def measure(setting: Setting, found: Figures) -> None:
    """Write each shape's steps, their floors and times, into `found`."""
    for shape in (TINY,) if setting.is_quick else (EIGHT_B, ONE_B):
        found[shape.name] = {}
        _model(setting, random_weights(setting, shape), shape, found[shape.name])
        setting.free()


def _model(setting: Setting, weights: Weights, shape: Shape, found: Figures) -> None:
    points = list(_points(setting.is_quick))
    tokens = max(room(point.batch, point.context + point.drafted + 1) for point in points)
    found |= {"weight_bytes": weights.num_bytes, "parameters": weights.num_bytes // setting.dtype.itemsize}
    lines = {point: _floors(setting, weights, point) for point in points}
    found["steps"] = list(lines.values())
    for has_graphs in (True, False):
        runner = runner_of(weights, tokens, has_graphs=has_graphs)
        with torch.inference_mode():
            runner.pages.keys.normal_()
            runner.pages.values.normal_()
        for point, line in lines.items():
            if setting.has_time():
                _time(setting, runner, point, line, shape.vocab)
                print(f"{shape.name} {'graphs' if has_graphs else 'eager':7}{line}", flush=True)
            else:
                line["left_out" if has_graphs else "eager_left_out"] = True
        del runner
        setting.free()


def _points(is_quick: bool) -> Iterator[Point]:
    """Yield the points, those of the bars first: time may run out."""
    if is_quick:
        yield from (Point(24, 1, 0), Point(24, 2, 1))
        return
    for drafted in (0, 7, 1, 3):
        for context, batches in ((512, (1, 8)), (8192, (8,)), (512, (64, 4, 16, 32))):
            yield from (Point(context, batch, drafted) for batch in batches)


def _floors(setting: Setting, weights: Weights, point: Point) -> Figures:
    rows = point.batch * (1 + point.drafted)
    kv_bytes = (point.batch * point.context + rows) * weights.token_bytes
    multiplied = weights.num_bytes / setting.dtype.itemsize * rows  # norms count for nothing
    return {
        "context": point.context,
        "batch": point.batch,
        "drafted": point.drafted,
        "floor_ms": round((weights.num_bytes + kv_bytes) / setting.machine("bandwidth_gb_s") / 1e6, 4),
        "compute_ms": round(2 * multiplied / setting.machine("product_tflop_s") / 1e9, 4),
    }


@torch.inference_mode()
def _time(setting: Setting, runner: DeviceRunner, point: Point, line: Figures, vocab_size: int) -> None:
    works = works_of(runner, point, vocab_size)
    replay = replay_of(runner, works)
    if replay is not None:
        line["gpu_ms"] = round(setting.device_ms(replay, times=REPLAYS), 4)
        line["gpu / floor"] = round(line["gpu_ms"] / line["floor_ms"], 3)
        if point.is_profiled:
            line["kernels_us"] = _profiled(setting, replay)
    name = "eager_ms" if replay is None else "wall_ms"
    line[name] = round(setting.wall_ms(partial(runner.forward, works)), 4)
    line[name.replace("_ms", " / floor")] = round(line[name] / line["floor_ms"], 3)
    for work in works:
        runner.release(work.sequence)


def _profiled(setting: Setting, replay: Callable[[], None]) -> dict[str, list[float]]:
    """Return the microseconds of each kernel in one replay, all its launches together, and their number."""
    is_cuda = setting.device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if is_cuda else ProfilerActivity.CPU]) as found:
        replay()
        setting.wait()
    averages = found.key_averages()
    taken = {e.key: (e.self_device_time_total if is_cuda else e.self_cpu_time_total, e.count) for e in averages}
    ranked = sorted(taken, key=lambda name: -taken[name][0])[:PROFILED]
    return {name[:80]: [round(taken[name][0], 1), taken[name][1]] for name in ranked}


def works_of(runner: DeviceRunner, point: Point, vocab_size: int) -> list[BatchEntry]:
    """Return batch entries of sequences in the middle of their texts; their pages' present contents are the cache."""
    works = []
    for i in range(point.batch):
        sequence = probe(1, vocab_size)
        root, *drafted = [(i * 31 + j * 17 + 1) % vocab_size for j in range(1 + point.drafted)]
        works.append(reserve(runner, BatchEntry(sequence, point.context, [root], chain(drafted), final=True)))
    return works


def replay_of(runner: DeviceRunner, works: list[BatchEntry]) -> Callable[[], None] | None:
    """Return the captured step that the runner takes for these batch entries, filled and sent; None without graphs.

    They are run once before: a step that enters all their pages into the page table takes a larger tier.
    """
    runner.forward(works)
    table = runner.page_table
    layout = layout_of(works, runner._method.cut, table.update(works))  # what `forward` hides from its callers
    tier = runner._graphs.tier(layout.size(changes=len(table.changes))) if runner._graphs else None
    if tier is None:
        return None
    fill(tier.arrays, layout, table.host, PAGE_TOKENS, table.limits, table.changes)
    table.launch(tier.arrays)
    return tier.replay

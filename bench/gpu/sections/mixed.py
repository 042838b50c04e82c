"""Time steps of every size in one process, as a server makes them: captures, memory, and the slowest.

Each step has other sequences, drafts and contexts. All graphs are captured when the runner is built,
so no step should take much longer than those of its size. `one stream` is the runner as it serves; `many
streams` has captured each graph on a stream of its own.
"""

import random
import time

import torch

from app.engine.cpu.equivalence import probe
from app.engine.gpu.weights import Weights
from app.state import BatchEntry
from bench.gpu.random_models import EIGHT_B, TINY, random_weights, room, runner_of
from bench.gpu.setting import Figures, Setting
from bench.gpu.texts import chain, reserve

MOST_DRAFTED = 8


def measure(setting: Setting, found: Figures) -> None:
    """Write the seconds and bytes of all captures, and the steps' times, into `found`, for one stream and many."""
    shape, sequences, context, steps = (TINY, 2, 24, 2) if setting.is_quick else (EIGHT_B, 64, 1024, 3000)
    weights = random_weights(setting, shape)
    sides = {"one stream": False, "many streams": True}
    ends_s = setting.ends_s
    for place, (name, has_own_streams) in enumerate(sides.items()):
        setting.ends_s = ends_s - setting.left_s() / 2 if place == 0 else ends_s  # each has half of the time
        random.seed(0)
        side = found[name] = {}
        _steps(setting, weights, shape.vocab, (sequences, context, steps), side, has_own_streams=has_own_streams)
        setting.free()
        print(name, side, flush=True)


@torch.inference_mode()
def _steps(
    setting: Setting,
    weights: Weights,
    vocab_size: int,
    sizes: tuple[int, int, int],
    found: Figures,
    *,
    has_own_streams: bool,
) -> None:
    sequences, context, steps = sizes
    found["weights_reserved_bytes"] = _reserved(setting)
    started = time.perf_counter()
    runner = runner_of(weights, room(sequences, context + MOST_DRAFTED + 1), has_own_streams=has_own_streams)
    setting.wait()
    found |= {"captures_s": round(time.perf_counter() - started, 2), "page_bytes": runner.page_bytes}
    found["captured_reserved_bytes"] = _reserved(setting)
    probes = [probe(1, vocab_size) for _ in range(sequences)]
    longest = chain([1] * MOST_DRAFTED)
    for one in probes:
        reserve(runner, BatchEntry(one, context, [1], longest, final=True))
    took_ms = []
    for _ in range(steps):
        if not setting.has_time():
            break
        works = [
            BatchEntry(
                one,
                random.randint(1, context),
                [random.randrange(vocab_size)],
                chain([random.randrange(vocab_size) for _ in range(random.randint(0, MOST_DRAFTED))]),
                final=True,
            )
            for one in random.sample(probes, random.randint(1, sequences))
        ]
        started = time.perf_counter()
        runner.forward(works)
        took_ms.append((time.perf_counter() - started) * 1e3)
    ranked = sorted(took_ms)
    parts = {"p50": 0.5, "p99": 0.99, "most": 1.0}
    found |= {
        "steps": len(ranked),
        "ms": {name: round(ranked[int(part * (len(ranked) - 1))], 3) for name, part in parts.items()},
        "reserved_bytes": _reserved(setting),
    }


def _reserved(setting: Setting) -> int | None:
    """Return the bytes that torch's allocator holds; None without a GPU."""
    return torch.cuda.memory_reserved(setting.device) if setting.device.type == "cuda" else None

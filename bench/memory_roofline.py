"""`python -m bench.memory_roofline`: compare a one-token step with the memory's read bandwidth.

The floor of a step is the time it takes to read every weight once: bytes / read bandwidth. Both are
measured in turn, with the same threads, so that a machine whose pace changes cannot favour either.
Each thread reads from several places by turns: one stream a thread does not show what memory can
give.
"""

import json
import os
import sys
import time
from typing import Any

from app.config import ROOT, THREAD_ENVIRONMENT, Settings

os.environ.update({**THREAD_ENVIRONMENT, **os.environ})  # before torch is loaded, as in the workers

import numpy as np

from app.assembly.devices import target_runner
from app.engine.cpu.equivalence import probe
from app.engine.text.tokenizer import Tokenizer
from app.engine.weights.resolve import target_folder
from app.state import BatchEntry, Tree
from bench.report_header import machine
from bench.stats import median
from kernels.cpu.row_ops import ZERO
from kernels.cpu.simd import BYTES as LINE
from kernels.cpu.simd import add, load, splat, sum_of
from kernels.cpu.threads import team
from kernels.jit import entry

BYTES = 2**30  # read for the bandwidth, far more than any cache holds
STREAMS = 4  # places a thread reads from
CONTEXT = 96
ROUNDS = 40
REST_S = 0.003  # torch's threads spin for a while behind their last operator, on the cores of the next


def main() -> int:
    """Measure, print and write the figures; return the exit status."""
    settings = Settings.from_env()
    folder = target_folder(settings)
    runner: Any = target_runner(folder, settings, Tokenizer(folder).context_tokens)
    numbers = np.ones(BYTES // 4, np.float32)
    readers = team(settings.verify_threads)
    part = BYTES // readers.size // STREAMS
    sequence = probe(CONTEXT + 8, runner.model.vocab_size)
    _step(runner, sequence, 0, CONTEXT)
    times: dict[str, list[float]] = {"read": [], "1 row": [], "8 rows": []}
    for _ in range(ROUNDS):
        for name, run in (
            ("read", lambda: readers.run(lambda i: read(numbers.ctypes.data + i * STREAMS * part, part))),
            ("1 row", lambda: _step(runner, sequence, CONTEXT, 1)),
            ("8 rows", lambda: _step(runner, sequence, CONTEXT, 8)),
        ):
            started = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - started)
            time.sleep(REST_S)
    bandwidth = BYTES / median(times["read"])
    floor_s = runner.model.weight_bytes / bandwidth
    name = settings.weights if settings.activations == "float32" else "integers"
    figures = {
        "machine": machine(),
        "weights": settings.weights,
        "activations": settings.activations,
        "read_gb_s": round(bandwidth / 1e9, 1),
        "floor_ms": round(1e3 * floor_s, 2),
        "one_row_ms": round(1e3 * median(times["1 row"]), 2),
        "eight_rows_ms": round(1e3 * median(times["8 rows"]), 2),
        "fraction_of_floor": round(floor_s / median(times["1 row"]), 2),
        "eight_rows_over_one": round(median(times["8 rows"]) / median(times["1 row"]), 2),
    }
    out = ROOT / "bench" / "results" / f"floor-{name}.json"
    out.write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures, indent=2))
    return 0


@entry
def read(where: int, part: int) -> float:
    """Sum four adjacent parts of `part` bytes each, float32, from address `where`, reading them by
    turns."""
    totals = splat(ZERO), splat(ZERO), splat(ZERO), splat(ZERO)
    for i in range(0, part - part % LINE, LINE):
        a, b, c, d = totals
        at = where + i
        totals = add(a, load(at)), add(b, load(at + part)), add(c, load(at + 2 * part)), add(d, load(at + 3 * part))
    return sum_of(add(add(totals[0], totals[1]), add(totals[2], totals[3])))


def _step(runner: Any, sequence: Any, start: int, rows: int) -> None:
    work = BatchEntry(sequence, start, sequence.tokens[start : start + rows], Tree(), final=True)
    runner.try_reserve(work)
    runner.forward([work])


if __name__ == "__main__":
    sys.exit(main())

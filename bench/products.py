"""`python -m bench.products`: time the compiled products alone, beside other programs that do the
same work.

A pass multiplies rows of 576 numbers by 76 matrices of 3,072 x 576 stored as Q4_1, 84 MB, one after
the other, so that memory is really read; two threads, each half of every matrix. Programs named with
`--beside` run by turns with it. Of what they print, lines such as `q4_1: 1:4.2(4.1) 8:9.7(9.5)` are read:
a kind, then rows and the median of their ms, perhaps with the least; kinds and rows that are timed here,
too, are compared.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from app.config import ROOT
from bench.report_header import machine, today
from bench.stats import median
from kernels.cpu.products.formats import FORMATS
from kernels.cpu.products.integer_tile import instructions
from kernels.cpu.products.linear import INTEGER_LINEAR, LINEAR, call_linear
from kernels.cpu.products.pack import aligned_empty
from kernels.cpu.products.round_rows import BLOCK, BLOCK_BYTES, round_row
from kernels.cpu.simd import LANES
from kernels.cpu.threads import team
from kernels.jit import entry

MATRICES, COLUMNS, DEPTH = 76, 3072, 576
ROWS = (1, 2, 4, 8, 16)
BAR = 1.15  # of a program's time, at most
BARRED = (1, 8)  # rows
THREADS = 2
PASSES = 9  # of each kind and number of rows a round
LINE = re.compile(r"^(\w+):((?: \d+:[\d.]+(?:\([\d.]+\))?)+)$", re.MULTILINE)
CELL = re.compile(r"(\d+):([\d.]+)(?:\([\d.]+\))?")
Times = dict[tuple[str, int], list[float]]  # ms by kind and rows


def main() -> int:
    """Measure, print and write the figures; return the exit status."""
    args = _parse_args()
    weights, x, rounded, out = _weights(), *_rows()
    kinds = {
        "q4_1": (LINEAR["Q4_1"].address, x, 4 * DEPTH),
        instructions(): (INTEGER_LINEAR["Q4_1"].address, rounded, rounded.shape[1]),
    }
    ours: Times = defaultdict(list)
    theirs: dict[str, Times] = {program: defaultdict(list) for program in args.beside}
    for _ in range(args.rounds):
        for kind, (kernel, of, stride) in kinds.items():
            for rows in ROWS:
                for _ in range(PASSES):
                    ours[kind, rows].append(_pass_ms(kernel, rows, of, stride, weights, out))
        print(_shown(ours), flush=True)
        for program, times in theirs.items():
            text = subprocess.run([program], check=True, capture_output=True, text=True).stdout
            for key, values in parse(text).items():
                times[key] += values
            print(f"{program}:\n{_shown(times)}", flush=True)
    figures = {
        "machine": machine(),
        "at": today(),
        "ms": _summary(ours),
        "beside": {Path(program).name: compared(ours, times) for program, times in theirs.items()},
    }
    if args.out is not None:
        args.out.write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures, indent=2))
    return 0


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.products", description=__doc__.split("\n\n")[0])
    parser.add_argument("--beside", nargs="+", default=[], metavar="PROGRAM", help="programs to run by turns with this")
    parser.add_argument("--rounds", type=int, default=3, help="turns")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "bench" / "results" / "products.json", help="file to write"
    )  # fmt: skip
    return parser.parse_args()


def _weights() -> np.ndarray:
    """Return the matrices, packed: (MATRICES, blocks, groups, bytes of a group) uint8.

    Both kinds of product read the same bytes: scales of small positive numbers, then nibbles, which each takes in
    another order.
    """
    form = FORMATS["Q4_1"]
    shape = (MATRICES, COLUMNS // LANES, DEPTH // form.depth, form.group_bytes)
    out = aligned_empty(shape, np.uint8)
    draw = np.random.default_rng(0)
    out[...] = draw.integers(0, 256, shape, np.uint8)
    out[..., 1 : form.header_bytes : 2] = draw.integers(0x10, 0x14, (*shape[:-1], form.header_bytes // 2), np.uint8)
    return out


def _rows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows as float32 (R, DEPTH) and rounded (R, bytes), and room for the products (R, COLUMNS)."""
    rows = max(ROWS)
    x, out = aligned_empty((rows, DEPTH), np.float32), aligned_empty((rows, COLUMNS), np.float32)
    x[...] = np.random.default_rng(1).uniform(-1, 1, x.shape)
    rounded = aligned_empty((rows, DEPTH // BLOCK * BLOCK_BYTES), np.uint8)
    for i in range(rows):
        _round(x[i], rounded[i])
    return x, rounded, out


@entry
def _round(x: np.ndarray, out: np.ndarray) -> None:
    round_row(x.ctypes.data, len(x), out.ctypes.data)


def _pass_ms(kernel: int, rows: int, x: np.ndarray, stride: int, weights: np.ndarray, out: np.ndarray) -> float:
    """Time one pass over all matrices; x: rows of `stride` bytes."""
    blocks = weights.shape[1]

    def share(thread: int) -> None:
        first, end = (blocks * i // THREADS for i in (thread, thread + 1))
        _multiply(kernel, rows, x.ctypes.data, stride, weights, first, end, out.ctypes.data)

    started = time.perf_counter()
    team(THREADS).run(share)
    return 1e3 * (time.perf_counter() - started)


@entry
def _multiply(kernel: int, rows: int, x: int, stride: int, weights: np.ndarray, first: int, end: int, out: int) -> None:
    """Compute blocks `first ... end - 1` of the rows' product with each matrix, over the last one's."""
    matrices, blocks, groups, size = weights.shape
    for i in range(matrices):
        w = weights.ctypes.data + i * blocks * groups * size
        call_linear(kernel, rows, x, stride, w, DEPTH, 0, first, end, out, 4 * COLUMNS)


def parse(text: str) -> Times:
    """Read what a program has printed: the medians, in ms, by kind and rows."""
    found: Times = defaultdict(list)
    for kind, cells in LINE.findall(text):
        for rows, middle in CELL.findall(cells):
            found[kind, int(rows)].append(float(middle))
    return found


def compared(ours: Times, theirs: Times) -> dict[str, Any]:
    """Return, by kind and rows that both have, their times, the ratio of ours to theirs, and whether it meets the
    bar."""
    found: dict[str, Any] = {}
    for kind, rows in sorted(ours.keys() & theirs.keys()):
        mine, other = ours[kind, rows], theirs[kind, rows]
        line: dict[str, Any] = {
            "ms": round(median(other), 2),
            "ratio": round(median(mine) / median(other), 3),
        }
        if rows in BARRED:
            line |= {"at_most": BAR, "met": line["ratio"] <= BAR}
        found[f"{kind}, {rows} rows"] = line
    return found


def _summary(times: Times) -> dict[str, dict[str, float]]:
    return {
        f"{kind}, {rows} rows": {"median": round(median(ms), 2), "least": round(min(ms), 2)}
        for (kind, rows), ms in times.items()
    }


def _shown(times: Times) -> str:
    """Write times as the lines that `parse` reads."""
    kinds = dict.fromkeys(kind for kind, _ in times)
    cells = {key: f" {key[1]}:{median(ms):.2f}({min(ms):.2f})" for key, ms in times.items()}
    return "\n".join(f"{kind}:" + "".join(cell for key, cell in cells.items() if key[0] == kind) for kind in kinds)


if __name__ == "__main__":
    sys.exit(main())

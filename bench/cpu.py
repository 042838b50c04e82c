"""`./paceline bench cpu PART`: where the time of a step on a CPU goes, and how near it is to what memory allows.

`roofline` compares steps with the time that reading what they read takes. `split` times
each product, the head and the rest of a step. `products` times the compiled products alone, beside other programs.
`sampling` times the choice of a token.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Listed
from functools import partial
from pathlib import Path
from typing import Any

from app.config import ROOT, THREAD_ENVIRONMENT, Settings

os.environ.update({**THREAD_ENVIRONMENT, **os.environ})  # before torch is loaded, as in the workers

import numpy as np
import torch

from app.assembly.devices import target_runner
from app.engine.cpu.equivalence import probe
from app.engine.kv.pages import bytes_per_page
from app.engine.profile.profiler import CONTEXT, a_step, step_seconds, verified
from app.engine.text.tokenizer import Tokenizer
from app.engine.weights.resolve import target_folder
from app.state import BatchEntry, CachedSequence, Tree
from bench.help import Defaults, count
from bench.help import parser as parser_of
from bench.report_header import RESULTS, heading, write_report
from bench.stats import median
from kernels.cpu.products.integer_formats import Q4_1
from kernels.cpu.products.integer_tile import instructions
from kernels.cpu.products.linear import ARGUMENTS, LINEAR, call_linear
from kernels.cpu.products.pack import aligned_empty
from kernels.cpu.products.row_blocks import BLOCK, BLOCK_BYTES, ROUNDED, SCALED, write_part
from kernels.cpu.row_ops import ZERO
from kernels.cpu.shapes import DOWN, GATE_UP, OUT, WEIGHTS, K, Model, Q, V
from kernels.cpu.simd import BYTES as LINE_BYTES
from kernels.cpu.simd import LANES, add, load, splat, sum_of
from kernels.cpu.threads import team
from kernels.jit import Native, entry
from kernels.sampling.contenders import target_token
from kernels.sampling.target_token import Choice, target_token_reference

REST_S = 0.003  # torch's threads spin for a while behind their last operator, on the cores of the next
TURNS = 40
READ_BYTES, STREAMS = 2**30, 4  # read for the bandwidth, far more than any cache holds, from several places a thread
ROWS, CHUNK = (1, 2, 4, 8, 16, 32), 512  # of `roofline`: rows of a step, and of those that fill the cache
SPLIT_ROWS = (1, 4, 8)
PARTS = {"q, k, v": (Q, K, V), "attention's output": (OUT,), "gate and up": (GATE_UP,), "down": (DOWN,)}
MATRICES, COLUMNS, DEPTH = 76, 3072, 576  # of `products`: 84 MB of Q4_1, so that memory is really read
PRODUCT_ROWS = (1, 2, 4, 8, 16)
THREADS, PASSES = 2, 9
CHOSEN = 31  # tokens in a time of `sampling`, less one
CHOICES = {
    "greedy": Choice(0.0, 1.0, 0, 0.0, 7),
    "temperature 0.8": Choice(0.8, 1.0, 0, 0.0, 7),
    "temperature 0.8, top-p 0.95": Choice(0.8, 0.95, 0, 0.0, 7),
    "temperature 0.7, top-k 40": Choice(0.7, 1.0, 40, 0.0, 7),
    "temperature 1": Choice(1.0, 1.0, 0, 0.0, 7),
}
CELL = re.compile(r"(\d+):([\d.]+)(?:\([\d.]+\))?")
PRINTED = re.compile(r"^(\w+):((?: \d+:[\d.]+(?:\([\d.]+\))?)+)$", re.MULTILINE)
Times = dict[tuple[str, int], list[float]]  # ms by kind and rows


def main(argv: Listed[str] | None = None) -> int:
    """Measure one part, print and write the figures; return the exit status."""
    args = parse_args(argv)
    settings = Settings.from_env()
    weights: str = settings.weights if settings.activations == "float32" else "integers"
    weights += "" if settings.kv_dtype == "float32" else f"-{settings.kv_dtype}"
    figures = {
        **heading("bench cpu", argv),
        "weights": settings.weights,
        "activations": settings.activations,
        "kv_dtype": settings.kv_dtype,
        **{"roofline": roofline, "split": split, "products": products, "sampling": sampling}[args.part](args),
    }
    names = {
        "roofline": f"roofline-{weights}",
        "split": f"step-split-{weights}",
        "products": "products",
        "sampling": "sampling",
    }
    out = args.out or RESULTS / f"{names[args.part]}.json"
    write_report(out, figures)
    print(json.dumps(figures, indent=2))
    return 0


def parse_args(argv: Listed[str] | None) -> argparse.Namespace:
    """Parse the command line; exit on a wrong one."""
    parser = parser_of("bench cpu", __doc__)
    parts = parser.add_subparsers(dest="part", required=True, metavar="PART")
    for part in (roofline, split, products, sampling):
        text = (part.__doc__ or "").split("\n\n")[0]
        own = parts.add_parser(part.__name__, help=text, description=text, formatter_class=Defaults)
        own.add_argument("--out", type=Path, help="file to write (default: one in .paceline/results)")
        if part is products:
            own.add_argument("--beside", nargs="+", default=[], metavar="PROGRAM", help="programs to run by turns")
            own.add_argument("--turns", type=count, default=3, help="of each program")
        if part is roofline:
            own.add_argument("--rows", type=count, nargs="+", default=ROWS, help="of a step")
            own.add_argument("--contexts", type=count, nargs="+", default=[CONTEXT], help="cached tokens")
    return parser.parse_args(argv)


def roofline(args: argparse.Namespace) -> dict[str, Any]:
    """Compare steps with the time of reading all weights, and the cached keys and values, once.

    Reading and steps take turns, on the same threads: a machine whose pace changes favours neither.
    """
    runner, threads = _target()
    numbers = np.ones(READ_BYTES // 4, np.float32)
    readers = team(threads)
    part = READ_BYTES // readers.size // STREAMS
    sequence = probe(max(args.contexts) + max(args.rows), runner.model.vocab_size)
    for start in range(0, max(args.contexts), CHUNK):
        chunk = sequence.tokens[start : min(start + CHUNK, max(args.contexts))]
        work = BatchEntry(sequence, start, chunk, Tree(), final=True)
        runner.try_reserve(work)
        runner.forward([work])
        runner.cover(sequence, start + len(chunk))
    cells = [(context, rows) for context in args.contexts for rows in args.rows]
    ms = _by_turns(
        {
            "read": lambda: readers.run(lambda i: _read(numbers.ctypes.data + i * STREAMS * part, part)),
            **{
                f"{context} {rows}": partial(step_seconds, runner, [verified(sequence, context, rows - 1)])
                for context, rows in cells
            },
        }
    )
    bandwidth, shape = READ_BYTES / ms["read"] * 1e3, runner.model.shape
    kv_dtype = Settings.from_env().kv_dtype
    token_bytes = bytes_per_page(shape.num_layers, shape.num_key_heads, shape.head_dim, 1, kv_dtype)
    steps = []
    for context, rows in cells:
        found_ms = ms[f"{context} {rows}"]
        floor_ms = 1e3 * (runner.model.weight_bytes + context * token_bytes) / bandwidth
        steps.append(
            {
                "context": context,
                "rows": rows,
                "ms": round(found_ms, 2),
                "floor_ms": round(floor_ms, 2),
                "floor_over_step": round(floor_ms / found_ms, 2),
            }
        )
    return {"read_gb_s": round(bandwidth / 1e9, 1), "steps": steps}


def split(_: argparse.Namespace) -> dict[str, Any]:
    """Time each product, the head and the rest of a step.

    A part's time is what a step takes less without it: its kernel is replaced by one that does nothing. The logits
    are garbage meanwhile, the times are not: nothing here depends on values.
    """
    runner = _target()[0]
    idle = Native(_nothing, "nothing", ARGUMENTS).address
    return {"context": CONTEXT, "rows": {rows: _split(runner, rows, idle) for rows in SPLIT_ROWS}}


def _split(runner: Any, rows: int, idle: int) -> dict[str, float]:
    with a_step(runner, runner.model.vocab_size, rows) as step:
        whole: Model = runner.model._model  # now that a step has given it the addresses of its cache
        models = {"whole": whole, **{name: _without(whole, slots, idle) for name, slots in PARTS.items()}}
        models["head"] = whole._replace(head_kernel=idle)
        models["rest"] = _without(whole, WEIGHTS, idle)._replace(head_kernel=idle)

        def run(model: Model) -> Callable[[], float]:
            def one() -> float:
                runner.model._model = model
                return step()

            return one

        ms = _by_turns({name: run(model) for name, model in models.items()})
        runner.model._model = whole
    kept = {name: found if name in ("whole", "rest") else ms["whole"] - found for name, found in ms.items()}
    return {name: round(found, 2) for name, found in kept.items()}


def _without(model: Model, slots: tuple[int, ...], idle: int) -> Model:
    layers = model.layers.copy()
    layers[:, list(slots)] = idle
    return model._replace(layers=layers)


def _nothing(a: int, b: int, c: int, d: int, e: int, f: int, g: int, h: int, i: int, j: int) -> None:
    """Do nothing, with the arguments of a product's kernel."""


def products(args: argparse.Namespace) -> dict[str, Any]:
    """Time the compiled products alone, beside other programs.

    Of what a program prints, lines such as `q4_1: 1:4.2(4.1) 8:9.7(9.5)` count: a kind, then rows and the median of
    their ms, perhaps with the least.
    """
    weights, (rows_of, out) = _weights(), _rows()
    kinds = {
        name: (LINEAR[form]["Q4_1"].address, rows_of[form], rows_of[form].shape[1])
        for name, form in (("q4_1", SCALED), (instructions(), ROUNDED))
    }
    ours: Times = defaultdict(list)
    theirs: dict[str, Times] = {program: defaultdict(list) for program in args.beside}
    for _ in range(args.turns):
        for kind, (kernel, of, stride) in kinds.items():
            for rows in PRODUCT_ROWS:
                for _ in range(PASSES):
                    ours[kind, rows].append(_pass_ms(kernel, rows, of, stride, weights, out))
        for program, times in theirs.items():
            text = subprocess.run([program], check=True, capture_output=True, text=True).stdout
            for key, values in parse(text).items():
                times[key] += values
    ms = {
        f"{kind}, {rows} rows": {"median": round(median(own), 2), "least": round(min(own), 2)}
        for (kind, rows), own in ours.items()
    }
    return {"ms": ms, "beside": {Path(program).name: compared(ours, times) for program, times in theirs.items()}}


def sampling(_: argparse.Namespace) -> dict[str, Any]:
    """Time the choice of a token from the target's logits, by its reference and with noise for contenders alone."""
    runner = _target()[0]
    text = Tokenizer(target_folder(Settings.from_env())).encode((ROOT / "README.md").read_text())
    sequence = CachedSequence("sampling", text[:CONTEXT])
    nodes = Tree(text[CONTEXT:][:CHOSEN], [*range(CHOSEN)], [1.0] * CHOSEN, [("text",)] * CHOSEN)
    work = BatchEntry(sequence, 0, sequence.tokens[:], nodes, final=True)
    runner.try_reserve(work)
    (found,) = runner.forward([work])
    rows: torch.Tensor = found.rows
    us = {}
    for name, choice in CHOICES.items():
        tokens = [(rows[i], choice, CONTEXT + i) for i in range(len(rows))]
        if any(target_token(*one) != target_token_reference(*one) for one in tokens):
            raise AssertionError(f"{name}: another token than that of the reference")
        ms = _by_turns({way.__name__: partial(_all, way, tokens) for way in (target_token_reference, target_token)})
        us[name] = {way: round(1e3 * found / len(rows)) for way, found in ms.items()}
    return {"vocabulary": rows.shape[1], "rows": len(rows), "us": us}


def _all(way: Callable[[torch.Tensor, Choice, int], int], tokens: Listed[tuple[torch.Tensor, Choice, int]]) -> None:
    for one in tokens:
        way(*one)


def parse(text: str) -> Times:
    """Read what a program has printed: the medians, in ms, by kind and rows."""
    found: Times = defaultdict(list)
    for kind, cells in PRINTED.findall(text):
        for rows, middle in CELL.findall(cells):
            found[kind, int(rows)].append(float(middle))
    return found


def compared(ours: Times, theirs: Times) -> dict[str, Any]:
    """Return, by kind and rows that both have, their ms and the ratio of ours to theirs."""
    found: dict[str, Any] = {}
    for kind, rows in sorted(ours.keys() & theirs.keys()):
        mine, other = median(ours[kind, rows]), median(theirs[kind, rows])
        found[f"{kind}, {rows} rows"] = {"ms": round(other, 2), "ratio": round(mine / other, 3)}
    return found


def _target() -> tuple[Any, int]:
    """Return the settings' target on this CPU, and its threads."""
    settings = Settings.from_env()
    folder = target_folder(settings)
    return target_runner(folder, settings, Tokenizer(folder).context_tokens), settings.verify_threads


def _by_turns(runs: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Return the median ms of each, all run by turns."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(TURNS):
        for name, run in runs.items():
            started_s = time.perf_counter()
            run()
            times[name].append(1e3 * (time.perf_counter() - started_s))
            time.sleep(REST_S)
    return {name: median(found) for name, found in times.items()}


@entry
def _read(where: int, part: int) -> float:
    """Sum four adjacent parts of `part` bytes each, float32, from address `where`, reading them by turns."""
    totals = splat(ZERO), splat(ZERO), splat(ZERO), splat(ZERO)
    for i in range(0, part - part % LINE_BYTES, LINE_BYTES):
        a, b, c, d = totals
        at = where + i
        totals = add(a, load(at)), add(b, load(at + part)), add(c, load(at + 2 * part)), add(d, load(at + 3 * part))
    return sum_of(add(add(totals[0], totals[1]), add(totals[2], totals[3])))


def _weights() -> np.ndarray:
    """Return the matrices, packed: (MATRICES, blocks, groups, bytes of a group) uint8.

    Scales are small positive numbers, weights are any.
    """
    form = Q4_1
    shape = (MATRICES, COLUMNS // LANES, DEPTH // form.depth, form.group_bytes)
    out = aligned_empty(shape, np.uint8)
    draw = np.random.default_rng(0)
    out[...] = draw.integers(0, 256, shape, np.uint8)
    out[..., 1 : form.header_bytes : 2] = draw.integers(0x10, 0x14, (*shape[:-1], form.header_bytes // 2), np.uint8)
    return out


def _rows() -> tuple[dict[int, np.ndarray], np.ndarray]:
    """Return the rows in blocks (R, bytes) by their form, and room for the products (R, COLUMNS)."""
    rows = max(PRODUCT_ROWS)
    x, out = aligned_empty((rows, DEPTH), np.float32), aligned_empty((rows, COLUMNS), np.float32)
    x[...] = np.random.default_rng(1).uniform(-1, 1, x.shape)
    found = {form: aligned_empty((rows, DEPTH // BLOCK * BLOCK_BYTES[form]), np.uint8) for form in (ROUNDED, SCALED)}
    for form, blocks in found.items():
        _write(form, x, blocks)
    return found, out


@entry
def _write(form: int, x: np.ndarray, out: np.ndarray) -> None:
    for row in range(len(x)):
        write_part(form, x.ctypes.data, out.ctypes.data, row, x.shape[1], 0, x.shape[1])


def _pass_ms(kernel: int, rows: int, x: np.ndarray, stride: int, weights: np.ndarray, out: np.ndarray) -> float:
    """Time one pass over all matrices, each thread half of every one; x: rows of `stride` bytes."""
    blocks = weights.shape[1]

    def share(thread: int) -> None:
        first, end = (blocks * i // THREADS for i in (thread, thread + 1))
        _multiply(kernel, rows, x.ctypes.data, stride, weights, first, end, out.ctypes.data)

    started_s = time.perf_counter()
    team(THREADS).run(share)
    return 1e3 * (time.perf_counter() - started_s)


@entry
def _multiply(kernel: int, rows: int, x: int, stride: int, weights: np.ndarray, first: int, end: int, out: int) -> None:
    """Compute blocks `first ... end - 1` of the rows' product with each matrix, over the last one's."""
    matrices, blocks, groups, size = weights.shape
    for i in range(matrices):
        w = weights.ctypes.data + i * blocks * groups * size
        call_linear(kernel, rows, x, stride, w, DEPTH, 0, first, end, out, 4 * COLUMNS)


if __name__ == "__main__":
    sys.exit(main())

"""Compare kernels' read rates with the copy bandwidth: attention at decode shapes, and every
kernel's benchmark case.

All timed with an empty cache. Attention is timed twice: with a program for each item of its work,
and with the fixed number of programs that a captured step has. Other tilings are timed on long contexts, and on
one request's 512 keys, where slices of the usual length keep few multiprocessors at work; the bound beside
them is torch's own attention on keys that lie side by side. What holds a launch up, Nsight Compute tells:

    ncu --set full --kernel-name regex:ragged_attention --launch-skip 4 --launch-count 2 \
        python bench/gpu/run.py --only bandwidth --out ncu.json
"""

from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from itertools import product

import torch
from torch.nn import functional as F

from app.engine.gpu.graphs import programs_of
from app.engine.gpu.layers import Method
from bench.gpu.kernel_cases import all_cases
from bench.gpu.setting import Figures, Setting
from kernels.attention.ragged_attention import AttentionTiling, Batch, ragged_attention
from kernels.attention.work_list import Work, work_list

HEADS, KEY_HEADS, HEAD_DIM, PAGE = 32, 8, 128, 16  # of an 8B model
FOLD = HEADS // KEY_HEADS
TILINGS = (  # keys of a step, keys of a program, warps, steps under way
    (32, 1024, 4, 4), (64, 512, 4, 3), (64, 2048, 4, 3), (64, 1024, 4, 4), (64, 1024, 8, 3), (128, 1024, 4, 2),
    (128, 2048, 8, 3), (64, 1024, 4, 5), (64, 1024, 4, 6), (32, 1024, 4, 6), (64, 256, 4, 3), (64, 256, 4, 5),
    (64, 128, 4, 3), (32, 128, 4, 5),
)  # fmt: skip
TILED = ((8, 32768), (1, 512))  # sequences, keys


def measure(setting: Setting, found: Figures) -> None:
    """Write the rates of attention, its tilings and all kernels into `found`."""
    found["attention"] = setting.lines(_shapes(setting), partial(_attention, setting))
    found["tilings"] = [
        line for shape in ([(1, 40)] if setting.is_quick else TILED) for line in _tilings(setting, *shape)
    ]
    kernels = found["kernels"] = []
    for case in all_cases(setting.device, 64, 128256) if setting.device.type == "cuda" else ():
        if not setting.has_time():
            break
        ms = setting.device_ms(case.run, is_cold=True)
        line = {"kernel": case.kernel, "case": case.name, "ms": round(ms, 4)}
        if case.bytes_read:
            line |= _rates(setting, case.bytes_read, ms)
        kernels.append(line)
        print(line, flush=True)


def _shapes(setting: Setting) -> Iterator[Figures]:
    """Yield numbers of sequences, of keys and of new rows, the longest context first."""
    shapes = [(40, 1, 2)] if setting.is_quick else product((32768, 8192), (64, 8, 1), (1, 8))
    return ({"batch": batch, "context": context, "rows": rows} for context, batch, rows in shapes)


def _attention(setting: Setting, batch: int, context: int, rows: int) -> Figures:
    kv, q = _inputs(setting, batch, context, rows)
    tiling = Method.of(setting.dtype, FOLD, is_exact=False).cut.narrow
    laid, work = _batch(setting, batch, context, rows, tiling)
    line: Figures = {}
    for name, programs in (("", None), ("captured_", programs_of(setting.device))):
        shared = replace(work, num_programs=programs)
        run = partial(ragged_attention, q, kv[0], kv[1], laid, shared, HEAD_DIM**-0.5, tiling=tiling)
        ms = setting.device_ms(run, is_cold=True)
        rates = {"ms": round(ms, 4), **_rates(setting, 2 * batch * context * kv[0, 0, 0].nbytes, ms)}
        line |= {name + key: value for key, value in rates.items()}
    return line


def _tilings(setting: Setting, batch: int, context: int) -> list[Figures]:
    """Time attention with other tilings; the present one comes first, and torch's own on contiguous keys last."""
    kv, q = _inputs(setting, batch, context, 1)
    present = Method.of(setting.dtype, FOLD, is_exact=False).cut.narrow
    found = []
    for keys, split, warps, stages in ((0, 0, 0, 0), *TILINGS[: 1 if setting.is_quick else None]):
        tiling = replace(present, keys=keys, split_keys=split, num_warps=warps, num_stages=stages) if keys else present
        laid, work = _batch(setting, batch, context, 1, tiling)
        run = partial(ragged_attention, q, kv[0], kv[1], laid, work, HEAD_DIM**-0.5, tiling=tiling)
        line = {"batch": batch, "context": context, **asdict(tiling)}
        try:
            ms = setting.device_ms(run, is_cold=True)
            line |= {"ms": round(ms, 4), **_rates(setting, 2 * batch * context * kv[0, 0, 0].nbytes, ms)}
        except Exception as error:  # too much for a multiprocessor
            line["error"] = f"{type(error).__name__}: {error}"[:200]
        found.append(line)
        print(line, flush=True)
    found.append({"batch": batch, "context": context, **_contiguous(setting, kv, q, context)})
    print(found[-1], flush=True)
    return found


def _contiguous(setting: Setting, kv: torch.Tensor, q: torch.Tensor, context: int) -> Figures:
    """Time torch's attention of one row of each sequence to keys and values that lie side by side."""
    keys, values = (one.view(len(q), -1, KEY_HEADS, HEAD_DIM)[:, :context].transpose(1, 2).contiguous() for one in kv)
    run = partial(F.scaled_dot_product_attention, q.view(len(q), HEADS, 1, HEAD_DIM), keys, values, enable_gqa=True)
    ms = setting.device_ms(run, is_cold=True)
    return {"kind": "contiguous keys", "ms": round(ms, 4), **_rates(setting, keys.nbytes + values.nbytes, ms)}


def _inputs(setting: Setting, batch: int, context: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random pages (2, P, PAGE, KEY_HEADS, HEAD_DIM) of keys and values, and queries (R, HEADS, HEAD_DIM)."""
    shape = 2, batch * -(-context // PAGE), PAGE, KEY_HEADS, HEAD_DIM
    kv = torch.randn(shape, device=setting.device, dtype=setting.dtype)
    return kv, torch.randn(batch * rows, HEADS, HEAD_DIM, device=setting.device, dtype=setting.dtype)


def _batch(setting: Setting, batch: int, context: int, rows: int, tiling: AttentionTiling) -> tuple[Batch, Work]:
    """Lay out chains of `rows` at the end of `context` keys, pages in no order; list their work."""
    table = -(-context // PAGE)
    depth = torch.arange(rows).repeat(batch)
    firsts, counts = torch.arange(batch) * rows, torch.full((batch,), rows)
    prefixes = torch.full((batch,), context - rows)
    listed = work_list(
        firsts.numpy(), counts.numpy(), prefixes.numpy(), batch * rows, FOLD, tiling.rows, tiling.split_keys
    )
    ints = firsts, counts, prefixes, torch.randperm(batch * table).view(batch, table)
    first_row, num_rows, prefix, pages = (x.int().to(setting.device) for x in ints)
    ancestors = ((2 << depth) - 1).to(setting.device)
    laid = Batch(first_row, num_rows, prefix, pages, ancestors, depth.int().to(setting.device))
    return laid, listed.on_device(setting.device)


def _rates(setting: Setting, num_bytes: int, ms: float) -> Figures:
    rate = num_bytes / ms / 1e6
    return {"gb_s": round(rate, 1), "of_copy": round(rate / setting.machine("copy_gb_s"), 3)}

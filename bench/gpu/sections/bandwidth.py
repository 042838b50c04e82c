"""Compare kernels' read rates with the copy bandwidth: attention at decode shapes, and every
kernel's benchmark case.

All timed with an empty cache. Attention is timed twice: with a program for each item of its work,
and with the fixed number of programs that a captured step has. Other tilings are timed on long contexts, and on
one request's 512 keys, where slices of the usual length keep few multiprocessors at work; the bound beside
them is torch's own attention on keys that lie side by side. What holds a launch up, Nsight Compute tells:

    ncu --set full --kernel-name regex:ragged_attention --launch-skip 4 --launch-count 2 \
        python bench/gpu/run.py --only bandwidth --out ncu.json
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from itertools import product

import torch
from torch.nn import functional as F

from app.engine.gpu.graphs import programs_of
from app.engine.gpu.layers import Method
from bench.gpu.kernel_cases import HEAD_DIM, HEADS, KEY_HEADS, PAGE, all_cases, laid_out
from bench.gpu.setting import Figures, Setting
from kernels.attention.ragged_attention import ragged_attention

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
        kernels.append({"kernel": case.kernel, "case": case.name, **_timed(setting, case.run, case.bytes_read)})
        print(kernels[-1], flush=True)


def _shapes(setting: Setting) -> Iterator[Figures]:
    """Yield numbers of sequences, of keys and of new rows, the longest context first."""
    shapes = [(40, 1, 2)] if setting.is_quick else product((32768, 8192), (64, 8, 1), (1, 8))
    return ({"batch": batch, "context": context, "rows": rows} for context, batch, rows in shapes)


def _attention(setting: Setting, batch: int, context: int, rows: int) -> Figures:
    kv, q = _inputs(setting, batch, context, rows)
    tiling = Method.of(setting.dtype, FOLD, is_exact=False).cut.narrow
    laid, work = laid_out([(context - rows, rows)] * batch, tiling, setting.device, has_chains=True)
    line: Figures = {}
    for name, programs in (("", None), ("captured_", programs_of(setting.device))):
        shared = replace(work, num_programs=programs)
        run = partial(ragged_attention, q, kv[0], kv[1], laid, shared, HEAD_DIM**-0.5, tiling=tiling)
        rates = _timed(setting, run, 2 * batch * context * kv[0, 0, 0].nbytes)
        line |= {name + key: value for key, value in rates.items()}
    return line


def _tilings(setting: Setting, batch: int, context: int) -> list[Figures]:
    """Time attention with other tilings; the present one comes first, and torch's own on contiguous keys last."""
    kv, q = _inputs(setting, batch, context, 1)
    present = Method.of(setting.dtype, FOLD, is_exact=False).cut.narrow
    found = []
    for keys, split, warps, stages in ((0, 0, 0, 0), *TILINGS[: 1 if setting.is_quick else None]):
        tiling = replace(present, keys=keys, split_keys=split, num_warps=warps, num_stages=stages) if keys else present
        laid, work = laid_out([(context - 1, 1)] * batch, tiling, setting.device, has_chains=True)
        run = partial(ragged_attention, q, kv[0], kv[1], laid, work, HEAD_DIM**-0.5, tiling=tiling)
        line = {"batch": batch, "context": context, **asdict(tiling)}
        try:
            line |= _timed(setting, run, 2 * batch * context * kv[0, 0, 0].nbytes)
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
    return {"kind": "contiguous keys", **_timed(setting, run, keys.nbytes + values.nbytes)}


def _inputs(setting: Setting, batch: int, context: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random pages (2, P, PAGE, KEY_HEADS, HEAD_DIM) of keys and values, and queries (R, HEADS, HEAD_DIM)."""
    shape = 2, batch * -(-context // PAGE), PAGE, KEY_HEADS, HEAD_DIM
    kv = torch.randn(shape, device=setting.device, dtype=setting.dtype)
    return kv, torch.randn(batch * rows, HEADS, HEAD_DIM, device=setting.device, dtype=setting.dtype)


def _timed(setting: Setting, run: Callable[[], object], num_bytes: int) -> Figures:
    """Time a kernel with an empty cache; return its ms, and the rate at which it reads so many bytes, if any."""
    ms = setting.device_ms(run, is_cold=True)
    rate = num_bytes / ms / 1e6
    rates = {"gb_s": round(rate, 1), "of_copy": round(rate / setting.machine("copy_gb_s"), 3)} if num_bytes else {}
    return {"ms": round(ms, 4), **rates}

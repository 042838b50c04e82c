"""Compute the root mean square norm of a row, with the residual stream's addition.

    residual = residual + x;  out = weight * residual / sqrt(mean(residual^2) + epsilon)

The sum is rounded to the dtype before it is normed, and the normed row before it is weighed, as transformers does.
Squares are added in float32. One program takes one row.
"""

from collections.abc import Iterator
from functools import partial

import torch
import triton
import triton.language as tl

from kernels.compile import CompileCase

# mypy: allow-untyped-defs, allow-incomplete-defs
# (a kernel's arguments get their types from each launch; the functions around it are typed)

MAX_COLUMNS = 16384  # a row stays in the registers of one program
WARP_COLUMNS = 512  # of a row, for each warp
MAX_WARPS = 16


def add_rms_norm_reference(
    x: torch.Tensor | None,  # (T, d); None: nothing is added
    residual: torch.Tensor,  # (T, d), changed in place
    weight: torch.Tensor,  # (d,)
    epsilon: float,
    out: torch.Tensor,  # (T, d), written
) -> None:
    if x is not None:
        residual += x
    wide = residual.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    out.copy_(weight * normed.to(residual.dtype))


@triton.jit
def _add_rms_norm_kernel(
    x_ptr,  # (T, COLUMNS) or None
    residual_ptr,  # (T, COLUMNS)
    weight_ptr,  # (COLUMNS,)
    out_ptr,  # (T, COLUMNS)
    epsilon,
    COLUMNS: tl.constexpr,  # d
    BLOCK: tl.constexpr,  # power of two >= COLUMNS
):
    start = tl.program_id(0).to(tl.int64) * COLUMNS
    column = tl.arange(0, BLOCK)
    inside = column < COLUMNS
    residual = tl.load(residual_ptr + start + column, mask=inside, other=0.0)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0)
    dtype = residual.dtype
    wide = residual.to(tl.float32)
    if x_ptr is not None:
        x = tl.load(x_ptr + start + column, mask=inside, other=0.0)
        residual = (wide + x.to(tl.float32)).to(dtype)
        wide = residual.to(tl.float32)
        tl.debug_barrier()  # a short row is loaded by several warps: none may find what another has stored
        tl.store(residual_ptr + start + column, residual, mask=inside)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / COLUMNS + epsilon)
    normed = (wide * scale).to(dtype).to(tl.float32)
    tl.store(out_ptr + start + column, (weight.to(tl.float32) * normed).to(dtype), mask=inside)


def add_rms_norm(
    x: torch.Tensor | None,  # (T, d); None: nothing is added, and the residual stays as it is
    residual: torch.Tensor,  # (T, d), changed in place
    weight: torch.Tensor,  # (d,)
    epsilon: float,
    out: torch.Tensor,  # (T, d), written; may be x itself
) -> None:
    """All of one dtype; allocate nothing, read nothing back. Raises ValueError."""
    num_rows, columns = residual.shape
    rows = [residual, out] if x is None else [residual, out, x]
    if any(one.shape != residual.shape or not one.is_contiguous() for one in rows) or columns > MAX_COLUMNS:
        raise ValueError(f"rows must be contiguous, of one shape, and of {MAX_COLUMNS} columns at most")
    if weight.shape != (columns,) or not weight.is_contiguous():
        raise ValueError(f"a weight of {tuple(weight.shape)} for {columns} columns")
    if any(one.dtype != weight.dtype for one in rows):
        raise ValueError("rows and weight must have one dtype")
    if not num_rows:
        return
    block = triton.next_power_of_2(columns)
    num_warps = min(max(block // WARP_COLUMNS, 1), MAX_WARPS)
    _add_rms_norm_kernel[(num_rows,)](
        x, residual, weight, out, epsilon, COLUMNS=columns, BLOCK=block, num_warps=num_warps
    )


def compile_cases() -> Iterator[CompileCase]:
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)):
        yield CompileCase(
            f"4096 columns, {name}", partial(_compile_case, dtype, 4096), other_dtype=dtype != torch.bfloat16
        )
    yield CompileCase("2880 columns, nothing added, bf16", partial(_compile_case, torch.bfloat16, 2880, False))
    yield CompileCase(f"{MAX_COLUMNS} columns, bf16", partial(_compile_case, torch.bfloat16, MAX_COLUMNS))


def _compile_case(dtype: torch.dtype, columns: int, adds: bool = True) -> None:
    rows = torch.empty(64, columns, dtype=dtype, device="meta")
    add_rms_norm(rows if adds else None, rows, rows[0], 1e-5, rows)

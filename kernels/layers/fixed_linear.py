"""Multiply by a weight with rows independent of each other, in float32 sums.

    out = x weight^T + bias

A program takes a tile of BLOCK_M rows and BLOCK_N columns, of one size for every number of rows, and goes through K in
one order; nothing is split or tuned.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from kernels.compile import CompileCase

# mypy: allow-untyped-defs, allow-incomplete-defs
# (a kernel's arguments get their types from each launch; the functions around it are typed)


@dataclass(frozen=True, slots=True)
class LinearTiling:
    """Tile sizes. Another tiling may give other bits: keep to one for a weight."""

    rows: int  # of a program: 64 is what one instruction of sm_90 multiplies
    columns: int  # of a program
    depth: int  # of one step along K
    num_warps: int
    num_stages: int  # steps under way


BITS16 = LinearTiling(
    rows=64, columns=64, depth=64, num_warps=4, num_stages=6
)  # 96 KiB are under way: few rows wait on memory
FLOAT32 = LinearTiling(rows=64, columns=64, depth=32, num_warps=4, num_stages=4)


def fixed_linear_reference(
    x: torch.Tensor,  # (M, K)
    weight: torch.Tensor,  # (N, K)
    bias: torch.Tensor | None = None,  # (N,)
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:  # (M, N)
    return F.linear(x.float(), weight.float(), None if bias is None else bias.float()).to(out_dtype or x.dtype)


@triton.jit(do_not_specialize=["num_rows"])
def _fixed_linear_kernel(
    x_ptr,  # (M, K)
    weight_ptr,  # (N, K)
    bias_ptr,  # (N,) or None
    out_ptr,  # (M, N)
    num_rows,  # M
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    is_row, is_column = (row < num_rows)[:, None], (column < N)[None, :]
    x_ptr += row.to(tl.int64)[:, None] * K + k[None, :]
    weight_ptr += column.to(tl.int64)[None, :] * K + k[:, None]
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, K, BLOCK_K):
        in_x, in_weight = is_row, is_column
        if K % BLOCK_K != 0:
            in_x, in_weight = is_row & (start + k < K)[None, :], is_column & (start + k < K)[:, None]
        x = tl.load(x_ptr + start, mask=in_x, other=0.0)
        weight = tl.load(weight_ptr + start, mask=in_weight, other=0.0)
        acc = tl.dot(x, weight, acc, input_precision=PRECISION)
    if bias_ptr is not None:
        acc += tl.load(bias_ptr + column, mask=column < N, other=0.0).to(tl.float32)[None, :]
    out_ptr += row.to(tl.int64)[:, None] * N + column[None, :]
    tl.store(out_ptr, acc.to(out_ptr.dtype.element_ty), mask=is_row & is_column)


def fixed_linear(
    x: torch.Tensor,  # (M, K)
    weight: torch.Tensor,  # (N, K)
    bias: torch.Tensor | None = None,  # (N,)
    tiling: LinearTiling | None = None,  # None: the dtype's own
    out_dtype: torch.dtype | None = None,  # None: that of x
) -> torch.Tensor:  # (M, N)
    """Allocate the result, read nothing back. Raises ValueError for unsupported arguments."""
    (num_rows, depth), columns = x.shape, len(weight)
    if weight.shape[1] != depth or (bias is not None and bias.shape != (columns,)):
        raise ValueError(f"rows {tuple(x.shape)} do not fit a weight {tuple(weight.shape)} or its bias")
    given = [x, weight] if bias is None else [x, weight, bias]
    if any(one.dtype != x.dtype or not one.is_contiguous() for one in given):
        raise ValueError("rows, weight and bias must be contiguous and of one dtype")
    if tiling is None:
        tiling = FLOAT32 if x.dtype == torch.float32 else BITS16
    out = x.new_empty(num_rows, columns, dtype=out_dtype or x.dtype)
    if not num_rows:
        return out
    # Tiles of rows first: the programs that read a tile of the weight run side by side, and the cache reads it once.
    grid = (triton.cdiv(num_rows, tiling.rows), triton.cdiv(columns, tiling.columns))
    _fixed_linear_kernel[grid](
        x, weight, bias, out, num_rows, N=columns, K=depth,
        BLOCK_M=tiling.rows, BLOCK_N=tiling.columns, BLOCK_K=tiling.depth,
        # Of float32 only: three products of tensor cores keep all but the last bits. Plain tf32 keeps 10, and "ieee"
        # leaves the tensor cores, where the empty rows of a tile cost as much as full ones.
        PRECISION="tf32x3" if x.dtype == torch.float32 else "tf32",
        num_warps=tiling.num_warps, num_stages=tiling.num_stages,
    )  # fmt: skip
    return out


def compile_cases() -> Iterator[CompileCase]:
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)):
        launch, is_other = partial(_compile_case, dtype, 4096, 6144, False), dtype != torch.bfloat16
        yield CompileCase(f"4096 to 6144, {name}", launch, has_dot=True, other_dtype=is_other)
    odd = partial(_compile_case, torch.bfloat16, 4112, 6152, True)
    yield CompileCase("4112 to 6152, bias, bf16", odd, has_dot=True)
    head = partial(_compile_case, torch.bfloat16, 4096, 6144, False, torch.float32)
    yield CompileCase("4096 to 6144, bf16 to fp32", head, has_dot=True)


def _compile_case(
    dtype: torch.dtype, depth: int, columns: int, biased: bool, out_dtype: torch.dtype | None = None
) -> None:
    weight = torch.empty(columns, depth, dtype=dtype, device="meta")
    fixed_linear(weight[:100], weight, weight[:, 0].contiguous() if biased else None, out_dtype=out_dtype)

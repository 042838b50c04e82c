"""Compute the gated unit between the two products of a feed-forward layer.

    out = silu(gate) * up,   silu(x) = x / (1 + e^-x)

Gate and up are the halves of one product's rows. silu is computed in float32 and rounded to the
dtype before it is multiplied: so do the models of transformers.
"""

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from kernels.compile import CompileCase

# mypy: allow-untyped-defs, allow-incomplete-defs
# (a kernel's arguments get their types from each launch; the functions around it are typed)

BLOCK_COLUMNS = 1024  # of one program


def gated_silu_reference(
    gate_up: torch.Tensor,  # (T, 2 * F), gate before up
    out: torch.Tensor,  # (T, F), written
) -> None:
    """The specification."""
    gate, up = gate_up.chunk(2, -1)
    out.copy_(F.silu(gate.float()).to(gate.dtype) * up)


@triton.jit
def _gated_silu_kernel(
    gate_up_ptr,  # (T, 2 * COLUMNS)
    out_ptr,  # (T, COLUMNS)
    COLUMNS: tl.constexpr,  # F
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < COLUMNS
    gate_up_ptr += row * (2 * COLUMNS)
    gate = tl.load(gate_up_ptr + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + COLUMNS + column, mask=inside, other=0.0)
    silu = (gate / (1.0 + tl.exp(-gate))).to(up.dtype)
    product = silu.to(tl.float32) * up.to(tl.float32)  # exact for 16 bits: rounded once, as the dtype's own product
    tl.store(out_ptr + row * COLUMNS + column, product.to(up.dtype), mask=inside)


def gated_silu(
    gate_up: torch.Tensor,  # (T, 2 * F)
    out: torch.Tensor,  # (T, F), written
) -> None:
    """Allocate nothing, read nothing back. Raises ValueError."""
    num_rows, columns = out.shape
    if gate_up.shape != (num_rows, 2 * columns):
        raise ValueError(f"gate and up {tuple(gate_up.shape)} do not fit {tuple(out.shape)}")
    if gate_up.dtype != out.dtype or not (gate_up.is_contiguous() and out.is_contiguous()):
        raise ValueError("both must be contiguous and of one dtype")
    if num_rows:
        grid = (num_rows, triton.cdiv(columns, BLOCK_COLUMNS))
        _gated_silu_kernel[grid](gate_up, out, COLUMNS=columns, BLOCK=BLOCK_COLUMNS)


def compile_cases() -> Iterator[CompileCase]:
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)):
        yield CompileCase(
            f"14336 columns, {name}", partial(_compile_case, dtype, 14336), other_dtype=dtype != torch.bfloat16
        )
    yield CompileCase("8640 columns, bf16", partial(_compile_case, torch.bfloat16, 8640))


def _compile_case(dtype: torch.dtype, columns: int) -> None:
    gate_up = torch.empty(64, 2 * columns, dtype=dtype, device="meta")
    gated_silu(gate_up, torch.empty(64, columns, dtype=dtype, device="meta"))

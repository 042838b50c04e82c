"""Drop pruned rows in the middle of a forward: the kept rows move up, in order, and the dropped
ones leave zeros.

Row r goes to place e(r), its place among all rows with the kept ones first:

    e(r) = number of kept rows before r, if r is kept
    e(r) = number of all kept rows + number of dropped rows before r, if not

Every place is written once, so nothing needs clearing. Sequence b's rows are then e(cu_rows[b]) ...
e(cu_rows[b + 1]) - 1. The number of kept rows stays on the device; a caller that knows a bound
gives it as `capacity` and gets no more rows than that.
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from kernels.compile import CompileCase

# mypy: allow-untyped-defs, allow-incomplete-defs
# (a kernel's arguments get their types from each launch; the functions around it are typed)

BLOCK_COLUMNS = 1024  # one step of a program


class CompactedRows(NamedTuple):
    """The rows kept. C is the capacity; rows from cu_rows[-1] on are zeros."""

    hidden: torch.Tensor  # (C, d)
    positions: torch.Tensor  # (C,)
    cu_rows: torch.Tensor  # (B + 1,) int32


def row_compaction_reference(
    hidden: torch.Tensor,  # (T, d)
    keep: torch.Tensor,  # (T,) bool
    cu_rows: torch.Tensor,  # (B + 1,) int32, sequence b has the rows cu_rows[b] ... cu_rows[b + 1] - 1
    positions: torch.Tensor,  # (T,)
    capacity: int | None = None,  # at least the number of rows kept; None: T
) -> CompactedRows:
    """Move the rows with torch's own operators: the specification."""
    capacity = len(hidden) if capacity is None else capacity
    rows = torch.nonzero(keep).squeeze(-1)[:capacity]
    out, out_positions = hidden.new_zeros(capacity, hidden.shape[1]), positions.new_zeros(capacity)
    out[: len(rows)], out_positions[: len(rows)] = hidden[rows], positions[rows]
    counts = [int(keep[: int(end)].sum()) for end in cu_rows]
    return CompactedRows(out, out_positions, torch.tensor(counts, dtype=torch.int32, device=keep.device))


@triton.jit(do_not_specialize=["num_rows", "capacity"])
def _row_compaction_kernel(
    hidden_ptr,  # (T, d), rows hidden_stride apart
    keep_ptr,  # (T,) bool
    before_ptr,  # (T + 1,) int32, kept rows before each
    positions_ptr,  # (T,)
    out_ptr,  # (capacity, d)
    out_positions_ptr,  # (capacity,)
    hidden_stride,
    num_rows,  # T
    capacity,
    COLUMNS: tl.constexpr,  # d
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    keep = tl.load(keep_ptr + row) != 0
    before = tl.load(before_ptr + row)
    place = tl.where(keep, before, tl.load(before_ptr + num_rows) + row - before)
    if place >= capacity:
        return
    position = tl.load(positions_ptr + row)
    tl.store(out_positions_ptr + place, tl.where(keep, position, tl.zeros_like(position)))
    hidden_ptr += row.to(tl.int64) * hidden_stride
    out_ptr += place.to(tl.int64) * COLUMNS
    for start in range(0, COLUMNS, BLOCK):
        column = start + tl.arange(0, BLOCK)
        values = tl.load(hidden_ptr + column, mask=keep & (column < COLUMNS), other=0.0)
        tl.store(out_ptr + column, values, mask=column < COLUMNS)


def row_compaction(
    hidden: torch.Tensor,  # (T, d), rows may lie apart
    keep: torch.Tensor,  # (T,) bool
    cu_rows: torch.Tensor,  # (B + 1,) int32
    positions: torch.Tensor,  # (T,)
    capacity: int | None = None,
) -> CompactedRows:
    """Move the rows in one launch; read nothing back from the device.

    Raises ValueError if the columns of a row lie apart.
    """
    num_rows, columns = hidden.shape
    if hidden.stride(1) != 1:
        raise ValueError("the columns of a row must lie side by side")
    capacity = num_rows if capacity is None else capacity
    before = F.pad(keep.cumsum(0, dtype=torch.int32), (1, 0))
    out = hidden.new_empty(capacity, columns)
    out_positions = positions.new_empty(capacity)
    _row_compaction_kernel[(num_rows,)](
        hidden, keep, before, positions, out, out_positions, hidden.stride(0), num_rows, capacity,
        COLUMNS=columns, BLOCK=min(triton.next_power_of_2(columns), BLOCK_COLUMNS),
    )  # fmt: skip
    return CompactedRows(out, out_positions, before[cu_rows.long()])


def compile_cases() -> Iterator[CompileCase]:
    """Yield hidden states of 4096 and of 2880, no power of two."""
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)):
        yield CompileCase(f"4096 columns, {name}", partial(_compile_case, dtype, 4096))
    yield CompileCase("2880 columns, bf16", partial(_compile_case, torch.bfloat16, 2880))


def _compile_case(dtype: torch.dtype, columns: int) -> None:
    hidden = torch.empty(64, columns, dtype=dtype, device="meta")
    ints = torch.empty(64, dtype=torch.int32, device="meta")
    row_compaction(hidden, ints.bool(), ints[:5], ints)

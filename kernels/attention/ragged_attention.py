"""Attend packed rows to their sequences' own pages on a GPU.

    softmax(softcap(q K^T * scale) + mask) V

New row j of a sequence lies in slot prefix + j; slot n in page blocks[n // S] at place n % S. A row sees the prefix
and, in a chain, the new rows up to itself, at position prefix + j; in a tree, the new rows j < 64 whose bit j is set in
its `ancestors`, at position prefix + depth. A window admits keys less than `window` positions back.

Programs process items (`work_list`): a tile of rows of one key head, its query heads folded, over one slice of keys; a
second kernel joins slices. A row's arithmetic depends on the tiling alone.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
import triton

from kernels.attention.ragged_attention_triton import join_slices_kernel, ragged_attention_kernel
from kernels.attention.work_list import ITEM, Work
from kernels.compile import CompileCase

MAX_TREE_ROWS = 64  # of a sequence with `ancestors`: bits of a word
HEADS_JOINED = 4  # by one program of the joining kernel


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows and pages of B sequences. All integers int32 except `ancestors`."""

    first_row: torch.Tensor  # (B,), in the packed queries
    num_rows: torch.Tensor  # (B,), may be 0
    prefix: torch.Tensor  # (B,), keys before the new rows
    blocks: torch.Tensor  # (R, N), page numbers; which row is a sequence's, the work says
    ancestors: torch.Tensor | None  # (T,) int64, bit j: sees new row j, itself included; None: causal
    depth: torch.Tensor | None  # (T,), of a node below the tree's root; None: causal


@dataclass(frozen=True, slots=True)
class AttentionTiling:
    rows: int  # of a tile, folded heads included
    keys: int  # of one step of a program
    split_keys: int  # of an item, a multiple of `keys`; 0: all keys
    num_warps: int
    num_stages: int


VERIFY = AttentionTiling(rows=16, keys=64, split_keys=1024, num_warps=4, num_stages=3)
PREFILL = AttentionTiling(rows=64, keys=64, split_keys=0, num_warps=4, num_stages=2)
# In float32 the others spill with heads of 128.
FLOAT32 = AttentionTiling(rows=16, keys=32, split_keys=1024, num_warps=4, num_stages=2)


def ragged_attention_reference(
    q: torch.Tensor,  # (T, H, D)
    k_pages: torch.Tensor,  # (P, S, HK, D)
    v_pages: torch.Tensor,  # (P, S, HK, D)
    batch: Batch,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
) -> torch.Tensor:  # (T, H, D) float32, zeros for rows of no sequence
    """Attend row by row in float32: the specification. `window` 0: no window; `softcap` 0: no softcap."""
    page_slots, key_heads = k_pages.shape[1:3]
    out = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
    for sequence in range(len(batch.first_row)):
        first, rows, prefix = (int(x[sequence]) for x in (batch.first_row, batch.num_rows, batch.prefix))
        slot = torch.arange(prefix + rows, device=q.device)
        page = batch.blocks[sequence][slot // page_slots].long()
        fold = q.shape[1] // key_heads
        keys = k_pages[page, slot % page_slots].float().repeat_interleave(fold, 1)
        values = v_pages[page, slot % page_slots].float().repeat_interleave(fold, 1)
        for row in range(first, first + rows):
            seen, position = slot <= prefix + row - first, slot
            if batch.ancestors is not None and batch.depth is not None:
                bits = [int(batch.ancestors[row]) >> j & 1 for j in range(rows)]
                seen = torch.cat([seen[:prefix], torch.tensor(bits, dtype=torch.bool, device=q.device)])
                position = torch.cat([slot[:prefix], prefix + batch.depth[first : first + rows]])
            if window:
                seen = seen & (position > position[prefix + row - first] - window)
            scores = torch.einsum("hd,nhd->hn", q[row].float(), keys) * scale
            if softcap:
                scores = torch.tanh(scores / softcap) * softcap
            weights = scores.masked_fill(~seen, -math.inf).softmax(-1)
            out[row] = torch.einsum("hn,nhd->hd", weights, values)
    return out


def ragged_attention(
    q: torch.Tensor,  # (T, H, D), rows may lie apart
    k_pages: torch.Tensor,  # (P, S, HK, D)
    v_pages: torch.Tensor,  # (P, S, HK, D)
    batch: Batch,
    work: Work,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    tiling: AttentionTiling = VERIFY,
    out: torch.Tensor | None = None,  # (T, H, D) contiguous
    fuses: bool = False,
) -> torch.Tensor:  # (T, H, D)
    """Attend all rows in `work`, listed for this tiling; read nothing back. The result has the dtype of q.

    Other rows of `out` keep their values; without `out` they are zeros. `fuses`: a product and a sum may share one
    rounding; a row's bits then depend on its neighbours. Raises ValueError for unsupported shapes and layouts.
    """
    num_packed, heads, head_dim = q.shape
    page_slots, key_heads = k_pages.shape[1:3]
    _check(q, k_pages, v_pages, batch, tiling)
    if out is None:
        out = q.new_zeros((num_packed, heads, head_dim))
    parts = q.new_empty((work.num_parts, heads, head_dim), dtype=torch.float32)
    lse = q.new_empty((work.num_parts, heads), dtype=torch.float32)
    block_d = max(triton.next_power_of_2(head_dim), 16)
    ragged_attention_kernel[(work.num_programs or len(work.items) * key_heads,)](
        q, k_pages, v_pages, out, parts, lse, work.slices, work.place, work.items, work.count,
        batch.first_row, batch.num_rows, batch.prefix, batch.blocks, batch.ancestors, batch.depth,
        scale, softcap, q.stride(0), batch.blocks.stride(0),
        FOLD=heads // key_heads, HK=key_heads, D=head_dim, PAGE=page_slots,
        TREE=batch.ancestors is not None, WINDOW=window, SOFTCAP=softcap > 0.0, SPLIT=tiling.split_keys,
        BLOCK_Q=tiling.rows, BLOCK_N=tiling.keys, BLOCK_D=block_d,
        PRECISION="tf32x3" if q.dtype == torch.float32 else "tf32",  # of products of float32 only
        num_warps=tiling.num_warps, num_stages=tiling.num_stages,
        # Else a product and a difference become one rounding in the loop without a mask, two in the other, and
        # which loop a row meets a key in depends on the rows beside it.
        enable_fp_fusion=fuses,
    )  # fmt: skip
    if work.num_parts:
        join_slices_kernel[(num_packed, triton.cdiv(heads, HEADS_JOINED))](
            parts, lse, work.slices, work.place, out, H=heads, D=head_dim, BLOCK_H=HEADS_JOINED, BLOCK_D=block_d
        )
    return out


def _check(
    q: torch.Tensor, k_pages: torch.Tensor, v_pages: torch.Tensor, batch: Batch, tiling: AttentionTiling
) -> None:
    heads, head_dim = q.shape[1:]
    if k_pages.shape != v_pages.shape or k_pages.shape[3] != head_dim or heads % k_pages.shape[2]:
        raise ValueError(f"queries {tuple(q.shape)} do not fit pages {tuple(k_pages.shape)}, {tuple(v_pages.shape)}")
    if q.stride(1) != head_dim or q.stride(2) != 1 or not (k_pages.is_contiguous() and v_pages.is_contiguous()):
        raise ValueError("heads of a row must lie side by side, and pages must be contiguous")
    if not q.dtype == k_pages.dtype == v_pages.dtype:
        raise ValueError(f"queries are {q.dtype}, keys {k_pages.dtype}, values {v_pages.dtype}")
    if (batch.ancestors is None) != (batch.depth is None):
        raise ValueError("a tree needs both ancestors and depth")
    if tiling.split_keys % tiling.keys:
        raise ValueError(f"an item's {tiling.split_keys} keys are not whole steps of {tiling.keys}")


def compile_cases() -> Iterator[CompileCase]:
    for name, dtype, tiling, tree, window, softcap, max_keys in (
        ("verify a chain, bf16", torch.bfloat16, VERIFY, False, 0, 0.0, 512),
        ("verify a tree, split, bf16", torch.bfloat16, VERIFY, True, 0, 0.0, 8192),
        ("verify a tree, window and softcap, bf16", torch.bfloat16, VERIFY, True, 4096, 50.0, 512),
        ("prefill, bf16", torch.bfloat16, PREFILL, False, 0, 0.0, 8192),
        ("verify a tree, split, fp16", torch.float16, VERIFY, True, 0, 0.0, 8192),
        ("prefill, window and softcap, fp16", torch.float16, PREFILL, False, 4096, 50.0, 8192),
        ("verify a tree, fp32", torch.float32, FLOAT32, True, 0, 0.0, 512),
    ):
        launch = partial(_compile_case, dtype, tiling, tree, window, softcap, max_keys)
        yield CompileCase(name, launch, has_dot=True, other_dtype=dtype != torch.bfloat16)


def _compile_case(
    dtype: torch.dtype, tiling: AttentionTiling, tree: bool, window: int, softcap: float, max_keys: int
) -> None:
    q = torch.empty(64, 32, 128, dtype=dtype, device="meta")
    pages = torch.empty(1024, 16, 8, 128, dtype=dtype, device="meta")
    ints = torch.empty(64, dtype=torch.int32, device="meta")
    batch = Batch(ints, ints, ints, ints.view(2, 32), ints.long() if tree else None, ints if tree else None)
    parts = 512 if tiling.split_keys and max_keys > tiling.split_keys else 0
    work = Work(ints.new_empty(128, ITEM), ints[:1], ints, ints, parts, None)
    ragged_attention(q, pages, pages, batch, work, 128**-0.5, window, softcap, tiling)

"""Norm the heads of a packed projection, rotate queries and keys, and store keys and values, in one pass.

A row of `qkv` holds H query heads, HK key heads and HK value heads of D. For each row, in this order:

    norm (if weights are given): head = weight * head / sqrt(mean(head^2) + epsilon), queries and keys
    rotate: head = head * cos[position] + rotate_half(head) * sin[position], queries and keys;
        rotate_half((a, b)) = (-b, a)
    store: queries stay where they are, keys and values go to the pages' flat slot: page * S + offset.

A row with a negative slot is left alone.

The normed head is rounded to the dtype before it is weighed, and again before it is rotated; tables are rounded to the
dtype, the rotation is float32 and rounded once. The kernel reads the first of a table row's two equal halves. One
program takes some heads of one row.
"""

from collections.abc import Iterator
from functools import partial

import torch
import triton
import triton.language as tl

from kernels.compile import CompileCase

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
# (a kernel's arguments get their types from each launch; the functions around it are typed)

BLOCK_HEADS = 8  # of one program
NUM_WARPS = 2  # 16 bytes for each thread, with 8 heads of 128


def rotary_store_reference(
    qkv: torch.Tensor,  # (T, (H + 2 * HK) * D), its queries changed in place
    positions: torch.Tensor,  # (T,) int32
    slots: torch.Tensor,  # (T,) int32, negative: leave the row alone
    cos: torch.Tensor,  # (positions, D) float32
    sin: torch.Tensor,  # (positions, D) float32
    k_pages: torch.Tensor,  # (P, S, HK, D), changed in place
    v_pages: torch.Tensor,  # (P, S, HK, D), changed in place
    num_heads: int,  # H
    q_norm: torch.Tensor | None = None,  # (D,)
    k_norm: torch.Tensor | None = None,  # (D,)
    epsilon: float = 0.0,
) -> None:
    key_heads, head_dim = k_pages.shape[2:]
    rows = torch.nonzero(slots >= 0).squeeze(-1)
    q, k, v = qkv.view(len(qkv), -1, head_dim)[rows].split([num_heads, key_heads, key_heads], 1)
    at = positions[rows].long()
    angles = [table[at].to(qkv.dtype).float().unsqueeze(1) for table in (cos, sin)]
    q, k = (_turned(_normed(x, norm, epsilon), *angles) for x, norm in ((q, q_norm), (k, k_norm)))
    qkv[rows, : num_heads * head_dim] = q.flatten(1)
    for pages, fresh in ((k_pages, k), (v_pages, v)):
        pages.view(-1, key_heads, head_dim)[slots[rows].long()] = fresh


def _normed(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float) -> torch.Tensor:
    if weight is None:
        return x
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)).to(x.dtype)


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.float().chunk(2, -1)
    return (x.float() * cos + torch.cat([-second, first], -1) * sin).to(x.dtype)


@triton.jit
def _turn_heads(
    source_ptr,  # (HEADS, D)
    target_ptr,  # (HEADS, D), may be the source
    norm_ptr,  # (D,) or None
    cos_ptr,  # (D,), of this position
    sin_ptr,  # (D,), of this position
    first_head,
    epsilon,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_HALF: tl.constexpr,  # power of two >= D / 2
):
    HALF: tl.constexpr = D // 2
    head = first_head + tl.arange(0, BLOCK_H)[:, None]
    d = tl.arange(0, BLOCK_HALF)[None, :]
    inside = (head < HEADS) & (d < HALF)
    place = head * D + d
    column = tl.broadcast_to(d, (BLOCK_H, BLOCK_HALF))  # what heads share is read for each: no exchange of threads
    a = tl.load(source_ptr + place, mask=inside, other=0.0)
    b = tl.load(source_ptr + place + HALF, mask=inside, other=0.0)
    cos = tl.load(cos_ptr + column, mask=inside, other=0.0).to(a.dtype).to(tl.float32)
    sin = tl.load(sin_ptr + column, mask=inside, other=0.0).to(a.dtype).to(tl.float32)
    wide_a, wide_b = a.to(tl.float32), b.to(tl.float32)
    if norm_ptr is not None:
        scale = tl.rsqrt((tl.sum(wide_a * wide_a, 1) + tl.sum(wide_b * wide_b, 1)) / D + epsilon)[:, None]
        weight_a = tl.load(norm_ptr + column, mask=inside, other=0.0).to(tl.float32)
        weight_b = tl.load(norm_ptr + column + HALF, mask=inside, other=0.0).to(tl.float32)
        wide_a = (weight_a * (wide_a * scale).to(a.dtype).to(tl.float32)).to(a.dtype).to(tl.float32)
        wide_b = (weight_b * (wide_b * scale).to(a.dtype).to(tl.float32)).to(a.dtype).to(tl.float32)
    tl.debug_barrier()  # small heads are loaded by several threads: none may find what another has stored
    tl.store(target_ptr + place, (wide_a * cos - wide_b * sin).to(a.dtype), mask=inside)
    tl.store(target_ptr + place + HALF, (wide_b * cos + wide_a * sin).to(a.dtype), mask=inside)


@triton.jit(do_not_specialize_on_alignment=["positions_ptr", "slots_ptr"])
def _rotary_store_kernel(
    qkv_ptr,  # (T, H + 2 * HK, D)
    positions_ptr,  # (T,)
    slots_ptr,  # (T,)
    cos_ptr,  # (positions, D)
    sin_ptr,  # (positions, D)
    k_ptr,  # (P * S, HK, D)
    v_ptr,  # (P * S, HK, D)
    q_norm_ptr,  # (D,) or None
    k_norm_ptr,  # (D,) or None
    epsilon,
    H: tl.constexpr,
    HK: tl.constexpr,
    D: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    if slot < 0:
        return
    Q_GROUPS: tl.constexpr = (H + BLOCK_H - 1) // BLOCK_H
    K_GROUPS: tl.constexpr = (HK + BLOCK_H - 1) // BLOCK_H
    group = tl.program_id(1)
    qkv_ptr += row * ((H + 2 * HK) * D)
    page_place = slot * (HK * D)
    if group < Q_GROUPS + K_GROUPS:
        angle = tl.load(positions_ptr + row).to(tl.int64) * D
        cos_ptr += angle
        sin_ptr += angle
        if group < Q_GROUPS:
            _turn_heads(
                qkv_ptr, qkv_ptr, q_norm_ptr, cos_ptr, sin_ptr, group * BLOCK_H,
                epsilon, H, D, BLOCK_H, BLOCK_HALF,
            )  # fmt: skip
        else:
            _turn_heads(
                qkv_ptr + H * D, k_ptr + page_place, k_norm_ptr, cos_ptr, sin_ptr, (group - Q_GROUPS) * BLOCK_H,
                epsilon, HK, D, BLOCK_H, BLOCK_HALF,
            )  # fmt: skip
    else:
        BLOCK_V: tl.constexpr = 2 * BLOCK_H * BLOCK_HALF
        column = (group - Q_GROUPS - K_GROUPS) * BLOCK_V + tl.arange(0, BLOCK_V)
        v = tl.load(qkv_ptr + (H + HK) * D + column, mask=column < HK * D)
        tl.store(v_ptr + page_place + column, v, mask=column < HK * D)


def rotary_store(
    qkv: torch.Tensor,  # (T, (H + 2 * HK) * D), its queries changed in place
    positions: torch.Tensor,  # (T,) int32
    slots: torch.Tensor,  # (T,) int32, negative: leave the row alone
    cos: torch.Tensor,  # (positions, D) float32
    sin: torch.Tensor,  # (positions, D) float32
    k_pages: torch.Tensor,  # (P, S, HK, D), changed in place
    v_pages: torch.Tensor,  # (P, S, HK, D), changed in place
    num_heads: int,  # H
    q_norm: torch.Tensor | None = None,  # (D,)
    k_norm: torch.Tensor | None = None,  # (D,)
    epsilon: float = 0.0,
) -> None:
    """Norm, rotate and store all rows; allocate nothing, read nothing back. Raises ValueError."""
    key_heads, head_dim = k_pages.shape[2:]
    _check(qkv, cos, sin, k_pages, v_pages, num_heads)
    _check_norms(qkv, head_dim, q_norm, k_norm)
    if any(x.shape != (len(qkv),) or x.dtype != torch.int32 or not x.is_contiguous() for x in (positions, slots)):
        raise ValueError("every row needs a position and a slot, int32")
    if not len(qkv):
        return
    # A program copies at least as many columns of values as it turns of keys: their groups are as many.
    groups = triton.cdiv(num_heads, BLOCK_HEADS) + 2 * triton.cdiv(key_heads, BLOCK_HEADS)
    _rotary_store_kernel[(len(qkv), groups)](
        qkv, positions, slots, cos, sin, k_pages, v_pages, q_norm, k_norm, epsilon,
        H=num_heads, HK=key_heads, D=head_dim, BLOCK_H=BLOCK_HEADS,
        BLOCK_HALF=triton.next_power_of_2(head_dim // 2), num_warps=NUM_WARPS,
    )  # fmt: skip


def _check(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    num_heads: int,
) -> None:
    key_heads, head_dim = k_pages.shape[2:]
    if k_pages.shape != v_pages.shape or qkv.shape[1] != (num_heads + 2 * key_heads) * head_dim or head_dim % 2:
        raise ValueError(
            f"{num_heads} query heads of {tuple(qkv.shape)} do not fit pages {tuple(k_pages.shape)}, "
            f"{tuple(v_pages.shape)}, or heads are odd"
        )
    if cos.shape != sin.shape or cos.shape[1] != head_dim or not cos.dtype == sin.dtype == torch.float32:
        raise ValueError(f"tables {tuple(cos.shape)}, {tuple(sin.shape)}, float32, are for heads of {head_dim}")
    if not all(x.is_contiguous() for x in (qkv, cos, sin, k_pages, v_pages)):
        raise ValueError("rows, tables and pages must be contiguous")
    if not qkv.dtype == k_pages.dtype == v_pages.dtype:
        raise ValueError(f"rows are {qkv.dtype}, keys {k_pages.dtype}, values {v_pages.dtype}")


def _check_norms(qkv: torch.Tensor, head_dim: int, *norms: torch.Tensor | None) -> None:
    for norm in norms:
        if norm is not None and (norm.shape != (head_dim,) or norm.dtype != qkv.dtype or not norm.is_contiguous()):
            raise ValueError(f"a norm's weight is {tuple(norm.shape)}, {norm.dtype}; heads {head_dim}, {qkv.dtype}")


def compile_cases() -> Iterator[CompileCase]:
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)):
        yield CompileCase(
            f"heads of 128, {name}", partial(_compile_case, dtype, 128, False), other_dtype=dtype != torch.bfloat16
        )
        yield CompileCase(
            f"heads of 128, normed, {name}",
            partial(_compile_case, dtype, 128, True),
            other_dtype=dtype != torch.bfloat16,
        )
    yield CompileCase("heads of 80, bf16", partial(_compile_case, torch.bfloat16, 80, False))
    yield CompileCase("heads of 256, normed, bf16", partial(_compile_case, torch.bfloat16, 256, True))


def _compile_case(dtype: torch.dtype, head_dim: int, normed: bool) -> None:
    qkv = torch.empty(64, 48 * head_dim, dtype=dtype, device="meta")
    table = torch.empty(8192, head_dim, device="meta")
    pages = torch.empty(1024, 16, 8, head_dim, dtype=dtype, device="meta")
    ints = torch.empty(64, dtype=torch.int32, device="meta")
    norm = qkv[0, :head_dim] if normed else None
    rotary_store(qkv, ints, ints, table, table, pages, pages, 32, norm, norm, 1e-6)

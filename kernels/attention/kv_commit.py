"""Move keys and values of a tree's accepted path to the slots right behind the prefix.

    slot[prefix + i] = slot[prefix + path[i]],   i < length

The tree's row j lies in slot prefix + j (`ragged_attention`); the rest behind the prefix is undefined. A slot can be
both source and target: a program loads the whole path, meets a barrier, and then stores it.
"""

from collections.abc import Iterator
from functools import partial

import torch
import triton
import triton.language as tl

from kernels.compile import CompileCase

# mypy: allow-untyped-defs, allow-incomplete-defs
# (a kernel's arguments get their types from each launch; the functions around it are typed)

BLOCK_COLUMNS = 128  # of one program


def kv_commit_reference(
    k_pages: torch.Tensor,  # (L, P, S, HK, D), changed in place
    v_pages: torch.Tensor,  # (L, P, S, HK, D), changed in place
    blocks: torch.Tensor,  # (B, N) int32, page numbers
    prefix: torch.Tensor,  # (B,) int32, keys before the tree
    path: torch.Tensor,  # (B, W) int32, rising rows of the tree, root first
    length: torch.Tensor,  # (B,) int32, of each path, may be 0
) -> None:
    page_slots = k_pages.shape[2]
    for sequence in range(len(prefix)):
        steps = torch.arange(int(length[sequence]), device=path.device)
        source, target = int(prefix[sequence]) + path[sequence][steps].long(), int(prefix[sequence]) + steps
        for pages in (k_pages, v_pages):
            moved = pages[:, blocks[sequence][source // page_slots].long(), source % page_slots].clone()
            pages[:, blocks[sequence][target // page_slots].long(), target % page_slots] = moved


@triton.jit(
    do_not_specialize=["blocks_stride", "path_width"],
    do_not_specialize_on_alignment=["block_ptr", "prefix_ptr", "path_ptr", "length_ptr"],
)
def _kv_commit_kernel(
    k_ptr,  # (L, P, PAGE, COLUMNS)
    v_ptr,  # (L, P, PAGE, COLUMNS)
    block_ptr,  # (B, N)
    prefix_ptr,  # (B,)
    path_ptr,  # (B, path_width)
    length_ptr,  # (B,)
    layer_stride,
    blocks_stride,
    path_width,
    PAGE: tl.constexpr,
    COLUMNS: tl.constexpr,  # HK * D
    BLOCK_W: tl.constexpr,  # power of two >= path_width
    BLOCK_C: tl.constexpr,
):
    sequence, layer = tl.program_id(0), tl.program_id(2)
    step = tl.arange(0, BLOCK_W)
    on_path = step < tl.load(length_ptr + sequence)
    node = tl.load(path_ptr + sequence * path_width + step, mask=on_path, other=0)
    moves = on_path & (node != step)
    if tl.max(moves.to(tl.int32), 0) == 0:
        return
    block_ptr += sequence.to(tl.int64) * blocks_stride
    prefix = tl.load(prefix_ptr + sequence)
    source, target = prefix + node, prefix + step
    source_page = tl.load(block_ptr + source // PAGE, mask=moves, other=0).to(tl.int64)
    target_page = tl.load(block_ptr + target // PAGE, mask=moves, other=0).to(tl.int64)
    column = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    base = layer.to(tl.int64) * layer_stride
    source_offset = base + (source_page * PAGE + source % PAGE)[:, None] * COLUMNS + column[None, :]
    target_offset = base + (target_page * PAGE + target % PAGE)[:, None] * COLUMNS + column[None, :]
    inside = moves[:, None] & (column < COLUMNS)[None, :]
    k = tl.load(k_ptr + source_offset, mask=inside)
    v = tl.load(v_ptr + source_offset, mask=inside)
    tl.debug_barrier()  # without it a fast warp's store would overwrite what a slow one has yet to load
    tl.store(k_ptr + target_offset, k, mask=inside)
    tl.store(v_ptr + target_offset, v, mask=inside)


def kv_commit(
    k_pages: torch.Tensor,  # (L, P, S, HK, D), changed in place
    v_pages: torch.Tensor,  # (L, P, S, HK, D), changed in place
    blocks: torch.Tensor,  # (B, N) int32
    prefix: torch.Tensor,  # (B,) int32
    path: torch.Tensor,  # (B, W) int32
    length: torch.Tensor,  # (B,) int32
) -> None:
    """Read nothing back. Raises ValueError for pages that are not contiguous or not alike."""
    layers, _, page_slots, key_heads, head_dim = k_pages.shape
    if k_pages.shape != v_pages.shape or not (k_pages.is_contiguous() and v_pages.is_contiguous()):
        raise ValueError("pages of keys and values must be contiguous and of one shape")
    if not path.is_contiguous():
        raise ValueError("paths must be contiguous")
    columns = key_heads * head_dim
    grid = (len(prefix), triton.cdiv(columns, BLOCK_COLUMNS), layers)
    _kv_commit_kernel[grid](
        k_pages, v_pages, blocks, prefix, path, length, k_pages.stride(0), blocks.stride(0), path.shape[1],
        PAGE=page_slots, COLUMNS=columns, BLOCK_W=triton.next_power_of_2(path.shape[1]), BLOCK_C=BLOCK_COLUMNS,
    )  # fmt: skip


def compile_cases() -> Iterator[CompileCase]:
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)):
        yield CompileCase(
            f"paths of 16, {name}",
            partial(_compile_case, dtype, 16),
            disassemble=True,
            other_dtype=dtype != torch.bfloat16,
        )
    yield CompileCase("paths of 64, bf16", partial(_compile_case, torch.bfloat16, 64), disassemble=True)


def _compile_case(dtype: torch.dtype, width: int) -> None:
    pages = torch.empty(36, 1024, 16, 8, 128, dtype=dtype, device="meta")
    ints = torch.empty(4, width, dtype=torch.int32, device="meta")
    kv_commit(pages, pages, ints, ints[:, 0], ints, ints[:, 0])

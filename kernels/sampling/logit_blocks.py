"""Read rows of logits block by block, with bias, penalties and the allowed-token mask applied.

    y(x) = divided(logit(x)) + bias(x) - penalty(x), -inf where x is not allowed

A row is its vocabulary in blocks, then its edits in blocks. `target_token.shaped` is the specification.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from kernels.sampling.choices import Edits
from kernels.sampling.target_token import Row, shaped

# mypy: allow-untyped-defs, allow-incomplete-defs
# (a kernel's arguments get their types from each launch; the functions around it are typed)

BLOCK = 2048  # tokens; 8192 spills


def shaped_rows(logits: torch.Tensor, rows: Sequence[Row]) -> list[torch.Tensor]:
    return [shaped(z.float(), row) for z, row in zip(logits, rows, strict=True)]


@triton.jit
def read_block(
    logits_ptr,  # (N, V)
    words_ptr,  # (N, num_words) int32; this and the rest read only if EDITED
    first_ptr,  # (N + 1,) int32
    edit_tokens_ptr,  # (E,) int32
    divide_ptr,  # (E,)
    add_ptr,  # (E,)
    subtract_ptr,  # (E,)
    row,  # int64
    block,  # below num_blocks: of the vocabulary; from there on: of the row's edits
    V,
    row_stride,
    num_words,
    num_blocks,
    EDITED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Return (token ids (BLOCK,) int32, their y (BLOCK,) float32, -inf for none)."""
    lane = tl.arange(0, BLOCK)
    ids = block * BLOCK + lane
    if EDITED:
        if block < num_blocks:
            word = tl.load(words_ptr + row * num_words + (ids >> 5), mask=ids < V, other=0)
            inside = ((word >> (ids & 31)) & 1) != 0
            # Loaded whole, so that the loads are wide, then masked.
            y = tl.load(logits_ptr + row * row_stride + ids, mask=ids < V, other=-float("inf")).to(tl.float32)
            y = tl.where(inside, y, -float("inf"))
        else:
            edit = tl.load(first_ptr + row) + (block - num_blocks) * BLOCK + lane
            inside = edit < tl.load(first_ptr + row + 1)
            ids = tl.load(edit_tokens_ptr + edit, mask=inside, other=V)
            y = tl.load(logits_ptr + row * row_stride + ids, mask=inside, other=-float("inf")).to(tl.float32)
            divide = tl.load(divide_ptr + edit, mask=inside, other=1.0)
            y = tl.where(y > 0.0, tl.div_rn(y, divide), y * divide)
            y = y + tl.load(add_ptr + edit, mask=inside, other=0.0)
            y = y - tl.load(subtract_ptr + edit, mask=inside, other=0.0)
    else:
        y = tl.load(logits_ptr + row * row_stride + ids, mask=ids < V, other=-float("inf")).to(tl.float32)
    return ids, y


@triton.jit
def first_of(values, ids, above_all):
    """Return (the highest value, its lowest id); `above_all` is above every id."""
    best = tl.max(values, 0)
    return best, tl.min(tl.where(values == best, ids, above_all), 0)


@triton.jit
def exp_sum(y, highest):
    """Return the sum of exp(y - highest), 0 where no token is allowed."""
    return tl.sum(tl.exp(y - tl.where(highest == -float("inf"), 0.0, highest)), 0)


def num_blocks_of(vocab_size: int, edits: Edits | None) -> tuple[int, int]:
    dense = triton.cdiv(vocab_size, BLOCK)
    return dense, dense + (triton.cdiv(edits.longest, BLOCK) if edits else 0)


def block_arguments(logits: torch.Tensor, edits: Edits | None) -> tuple[torch.Tensor, ...]:
    """Return the tensors whose pointers `read_block` takes; logits: (N, V)."""
    assert logits.ndim == 2 and logits.stride(1) == 1
    if edits is None:
        return (logits,) * 7
    assert edits.words.shape == (len(logits), triton.cdiv(logits.shape[1], 32)) and edits.words.is_contiguous()
    return logits, edits.words, edits.first, edits.tokens, edits.divide, edits.add, edits.subtract

"""Implement the two kernels of `ragged_attention`."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
# (a kernel's arguments get their types from each launch)

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _add_keys(
    highest,
    total,
    acc,  # (BLOCK_Q,), (BLOCK_Q,), (BLOCK_Q, BLOCK_D): the softmax so far
    q,  # (BLOCK_Q, BLOCK_D)
    k_ptr,
    v_ptr,
    page,  # (BLOCK_N,) of each slot
    slot,  # (BLOCK_N,)
    visible,  # (BLOCK_Q, BLOCK_N), read if MASKED
    end,
    scale,
    softcap,
    SOFTCAP: tl.constexpr,
    MASKED: tl.constexpr,
    PAGE: tl.constexpr,
    ROW: tl.constexpr,  # values of one slot, all key heads
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Add BLOCK_N keys to the online softmax, in powers of two; return (highest, total, acc)."""
    d = tl.arange(0, BLOCK_D)
    inside = (d < D)[None, :]
    if MASKED:
        inside = inside & (slot < end)[:, None]
    offset = (page.to(tl.int64) * PAGE + slot % PAGE)[:, None] * ROW + d[None, :]
    k = tl.load(k_ptr + offset, mask=inside, other=0.0)
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    if SOFTCAP:  # tanh x = 1 - 2 / (1 + e^2x), right at both ends
        scores = (1.0 - 2.0 / (1.0 + tl.exp2(scores * (2.0 * LOG2_E / softcap)))) * softcap
    scores = scores * LOG2_E
    if MASKED:
        scores = tl.where(visible, scores, -float("inf"))
    new_highest = tl.maximum(highest, tl.max(scores, 1))
    anchor = tl.where(new_highest == -float("inf"), 0.0, new_highest)  # a row that has seen nothing yet
    weights = tl.exp2(scores - anchor[:, None])
    shrink = tl.exp2(highest - anchor)
    v = tl.load(v_ptr + offset, mask=inside, other=0.0)
    acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
    return new_highest, total * shrink + tl.sum(weights, 1), acc


@triton.jit
def _attend_item(
    sequence,
    split,  # slice of the keys
    tile,
    table_row,  # of the page table
    head,  # of the keys
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    part_ptr,
    lse_ptr,
    slices_ptr,
    place_ptr,
    first_row_ptr,
    num_rows_ptr,
    prefix_ptr,
    block_ptr,
    ancestors_ptr,
    depth_ptr,
    scale,
    softcap,
    q_stride,
    blocks_stride,
    FOLD: tl.constexpr,  # H / HK
    HK: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    TREE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SPLIT: tl.constexpr,  # keys of a slice; 0: all
    BLOCK_Q: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
):
    num_rows = tl.load(num_rows_ptr + sequence)
    first, prefix = tl.load(first_row_ptr + sequence), tl.load(prefix_ptr + sequence)
    block_ptr += table_row.to(tl.int64) * blocks_stride

    folded = tile * BLOCK_Q + tl.arange(0, BLOCK_Q)
    row = folded // FOLD
    inside = row < num_rows
    packed = (first + row).to(tl.int64)
    head_q = head * FOLD + folded % FOLD
    d = tl.arange(0, BLOCK_D)
    in_tile = inside[:, None] & (d < D)[None, :]
    q = tl.load(q_ptr + (packed * q_stride + head_q * D)[:, None] + d[None, :], mask=in_tile, other=0.0)

    top = tile * BLOCK_Q // FOLD  # the tile's first row
    if TREE:
        ancestors = tl.load(ancestors_ptr + packed, mask=inside, other=0)
        depth = tl.load(depth_ptr + packed, mask=inside, other=0)
        top = 0  # nothing is known of the order of depths
        all_see = prefix
        end = prefix + num_rows
    else:
        depth = row
        all_see = prefix + top + 1
        end = prefix + tl.minimum((tile * BLOCK_Q + BLOCK_Q - 1) // FOLD + 1, num_rows)
    begin = 0
    if WINDOW:
        begin = tl.maximum(prefix + top - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
        all_see = 0
    if SPLIT:
        begin = tl.maximum(begin, split * SPLIT)
        end = tl.minimum(end, split * SPLIT + SPLIT)

    highest = tl.full([BLOCK_Q], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_Q], tl.float32)
    acc = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)
    k_ptr += head * D
    v_ptr += head * D
    unmasked_end = tl.minimum(all_see, end) // BLOCK_N * BLOCK_N
    n = tl.arange(0, BLOCK_N)
    # Page numbers are read a step ahead: keys whose addresses hang on a load of the same step are not prefetched.
    page = tl.load(block_ptr + (begin + n) // PAGE, mask=begin + n < end, other=0)
    for start in range(begin, unmasked_end, BLOCK_N):
        slot = start + n
        ahead = slot + BLOCK_N
        next_page = tl.load(block_ptr + ahead // PAGE, mask=ahead < end, other=0)
        highest, total, acc = _add_keys(
            highest, total, acc, q, k_ptr, v_ptr, page, slot, slot, end, scale, softcap,
            SOFTCAP, False, PAGE, HK * D, D, BLOCK_D, PRECISION,
        )  # fmt: skip
        page = next_page
    for start in range(tl.maximum(begin, unmasked_end), end, BLOCK_N):
        slot = start + n
        ahead = slot + BLOCK_N
        next_page = tl.load(block_ptr + ahead // PAGE, mask=ahead < end, other=0)
        new = slot - prefix  # the key's row among the new ones, negative in the prefix
        is_key = slot < end
        if TREE:
            bit = tl.minimum(tl.maximum(new, 0), 63).to(tl.int64)
            visible = (new < 0)[None, :] | ((ancestors[:, None] >> bit[None, :]) & 1 != 0)
        else:
            visible = new[None, :] <= row[:, None]
        visible = visible & is_key[None, :]
        if WINDOW:
            height = new
            if TREE:
                in_tree = is_key & (new >= 0)
                height = tl.where(in_tree, tl.load(depth_ptr + first + new, mask=in_tree, other=0), new)
            visible = visible & (height[None, :] > depth[:, None] - WINDOW)
        highest, total, acc = _add_keys(
            highest, total, acc, q, k_ptr, v_ptr, page, slot, visible, end, scale, softcap,
            SOFTCAP, True, PAGE, HK * D, D, BLOCK_D, PRECISION,
        )  # fmt: skip
        page = next_page

    divisor = tl.where(total == 0.0, 1.0, total)  # a row that saw nothing gets zeros, and weighs nothing
    out = acc / divisor[:, None]
    is_whole = in_tile
    if SPLIT:
        is_part = inside & (tl.load(slices_ptr + packed, mask=inside, other=0) > 1)
        part = tl.load(place_ptr + packed, mask=is_part, other=0) + split
        part = part.to(tl.int64) * (HK * FOLD) + head_q
        tl.store(lse_ptr + part, highest + tl.log2(divisor), mask=is_part)
        tl.store(part_ptr + part[:, None] * D + d[None, :], out, mask=in_tile & is_part[:, None])
        is_whole = in_tile & (is_part == 0)[:, None]
    out_offset = (packed * (HK * FOLD) + head_q)[:, None] * D + d[None, :]
    tl.store(out_ptr + out_offset, out.to(out_ptr.dtype.element_ty), mask=is_whole)


@triton.jit(
    do_not_specialize=["blocks_stride"],  # it changes from step to step
    do_not_specialize_on_alignment=[
        "slices_ptr", "place_ptr", "items_ptr", "count_ptr", "first_row_ptr", "num_rows_ptr", "prefix_ptr", "block_ptr",
    ],
)  # fmt: skip
def ragged_attention_kernel(
    q_ptr,  # (T, H, D), rows q_stride apart
    k_ptr,  # (P, PAGE, HK, D)
    v_ptr,  # (P, PAGE, HK, D)
    out_ptr,  # (T, H, D)
    part_ptr,  # SPLIT: (parts, H, D) float32
    lse_ptr,  # SPLIT: (parts, H) float32, log2 of the sum of the weights
    slices_ptr,  # (T,), read if SPLIT
    place_ptr,  # (T,), read if SPLIT
    items_ptr,  # (W, 4)
    count_ptr,  # (1,)
    first_row_ptr,  # (B,)
    num_rows_ptr,  # (B,)
    prefix_ptr,  # (B,)
    block_ptr,  # (R, N)
    ancestors_ptr,  # (T,) int64, read if TREE
    depth_ptr,  # (T,), read if TREE
    scale,
    softcap,
    q_stride,
    blocks_stride,
    FOLD: tl.constexpr,  # H / HK
    HK: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    TREE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SPLIT: tl.constexpr,  # keys of a slice; 0: all
    BLOCK_Q: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Attend item by item, for each key head. Grid: any number of programs."""
    for work in range(tl.program_id(0), tl.load(count_ptr) * HK, tl.num_programs(0)):
        item_ptr = items_ptr + work // HK * 4
        _attend_item(
            tl.load(item_ptr), tl.load(item_ptr + 1), tl.load(item_ptr + 2), tl.load(item_ptr + 3), work % HK,
            q_ptr, k_ptr, v_ptr, out_ptr, part_ptr, lse_ptr, slices_ptr, place_ptr,
            first_row_ptr, num_rows_ptr, prefix_ptr, block_ptr, ancestors_ptr, depth_ptr,
            scale, softcap, q_stride, blocks_stride,
            FOLD, HK, D, PAGE, TREE, WINDOW, SOFTCAP, SPLIT, BLOCK_Q, BLOCK_N, BLOCK_D, PRECISION,
        )  # fmt: skip


@triton.jit(do_not_specialize_on_alignment=["slices_ptr", "place_ptr"])
def join_slices_kernel(
    part_ptr,  # (parts, H, D) float32
    lse_ptr,  # (parts, H) float32
    slices_ptr,  # (T,)
    place_ptr,  # (T,)
    out_ptr,  # (T, H, D)
    H: tl.constexpr,
    D: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Join the slices of BLOCK_H heads of one row, if it has several.

    out = sum of 2^lse * part / sum of 2^lse, in order: slices without keys change no bit.
    """
    row = tl.program_id(0).to(tl.int64)
    slices = tl.load(slices_ptr + row)
    if slices < 2:
        return
    first = tl.load(place_ptr + row).to(tl.int64)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    d = tl.arange(0, BLOCK_D)
    highest = tl.full([BLOCK_H], -float("inf"), tl.float32)
    for one in range(0, slices):
        lse = tl.load(lse_ptr + (first + one) * H + head, mask=head < H, other=-float("inf"))
        highest = tl.maximum(highest, lse)
    highest = tl.where(highest == -float("inf"), 0.0, highest)
    total = tl.zeros([BLOCK_H], tl.float32)
    acc = tl.zeros([BLOCK_H, BLOCK_D], tl.float32)
    inside = (head < H)[:, None] & (d < D)[None, :]
    for one in range(0, slices):
        place = (first + one) * H + head
        weight = tl.exp2(tl.load(lse_ptr + place, mask=head < H, other=-float("inf")) - highest)
        part = tl.load(part_ptr + place[:, None] * D + d[None, :], mask=inside, other=0.0)
        total += weight
        acc += part * weight[:, None]
    out = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    offset = (row * H + head)[:, None] * D + d[None, :]
    tl.store(out_ptr + offset, out.to(out_ptr.dtype.element_ty), mask=inside)

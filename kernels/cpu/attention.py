"""Attend a tile of a chain's rows to its sequence's own pages, for one key head and one split of keys.

    softmax(q K^T * scale) V

Splits have the same positions in every batch; each gives its maximum, sum of weights and weighted sum of values, and
`join` adds them in order. Hidden keys add exact zeros. Arrays are given by address, float32 but for keys and values,
which may be float16. `attend` is called by address, so that it is compiled once for all that attend.
"""

from typing import Any

import numpy as np

from kernels.cpu.products.paged import paged_product, paged_product_f16
from kernels.cpu.products.tile import ROWS, height, product, product_f16, stream_f16, stream_fresh
from kernels.cpu.row_ops import LOWEST, ZERO
from kernels.cpu.simd import (
    LANES,
    add,
    call_with,
    div,
    exp,
    fma,
    larger,
    load,
    load_index,
    load_one,
    max_of,
    splat,
    store,
    store_one,
    sub,
    sum_of,
    within,
)
from kernels.jit import Native, kernel

SPLIT = 512  # keys
FIRST_SPLIT = 128  # of the first SPLIT keys, so that several threads have work in short contexts
TILE = 8  # rows of a tile at most
NO_WINDOW = 2**62
ARGUMENTS = 15


def count_splits(keys: int) -> int:
    """Return the splits of so many keys, 1 or more."""
    return min(-(-keys // FIRST_SPLIT), SPLIT // FIRST_SPLIT - 1 + -(-keys // SPLIT))


splits_of = kernel(count_splits)


@kernel
def start_of(split: int) -> int:
    return max(FIRST_SPLIT * split, SPLIT * (split + 1 - SPLIT // FIRST_SPLIT))


@kernel
def block_at(key: int, pages: int, page_bytes: int, page_tokens: int, key_bytes: int) -> int:
    """Return where the block of sixteen keys that begins with this one lies, in bytes."""
    return load_index(pages + 8 * (key // page_tokens)) * page_bytes + key % page_tokens * key_bytes


def _attend(name: str, item: int, multiply: Any, stream: Any, multiply_paged: Any) -> Native:
    """Return attention over keys and values of `item` bytes each."""

    def attend(
        q: int,  # (rows * fold, D), scaled
        rows: int,
        fold: int,  # query heads of the key head, standing under each other for each row
        position: int,  # of the first row
        split: int,
        window: int,
        pages: int,  # the sequence's page numbers, int64
        keys: int,  # of this layer and key head: (pages, S / 16, D, 16), pages `page_bytes` apart
        values: int,  # the same: (pages, D / 16, S, 16)
        page_bytes: int,
        page_tokens: int,
        depth: int,  # D
        scores: int,  # room for (rows * fold, SPLIT)
        sums: int,  # out: (rows * fold, D), not yet divided
        stats: int,  # out: (rows * fold, 2), maximum and sum of weights
    ) -> None:
        start = start_of(split)
        end = min(start_of(split + 1), position + rows)
        lines = rows * fold
        one = height(lines, ROWS)
        at, last = keys + block_at(start, pages, page_bytes, page_tokens, item * depth), (end - 1) // LANES * LANES
        for key in range(start, end, LANES):
            after = keys + block_at(min(key + LANES, last), pages, page_bytes, page_tokens, item * depth)
            out = scores + 4 * (key - start)
            stream(one, q, 4 * depth, at, item * LANES, depth, out, 4 * SPLIT, after)
            multiply(
                lines - one, q + 4 * one * depth, 4 * depth, at, item * LANES, depth, out + 4 * one * SPLIT, 4 * SPLIT
            )
            at = after
        for line in range(lines):
            seen = position + line // fold + 1
            row = scores + line * 4 * SPLIT
            highest, total = weigh(row, max(0, seen - window - start), seen - start, end - start)
            store_one(stats + 8 * line, highest)
            store_one(stats + 8 * line + 4, total)
        numbers = pages + 8 * (start // page_tokens)
        for i in range(0, depth, LANES):
            at = values + item * i * page_tokens
            multiply_paged(
                lines, scores, 4 * SPLIT, numbers, at, page_bytes, page_tokens, end - start, sums + 4 * i, 4 * depth
            )

    return Native(attend, name, ARGUMENTS)


@kernel
def weigh(row: int, first: int, end: int, size: int) -> tuple[np.float32, np.float32]:
    """Turn `size` scores at `row` into exp(score - maximum), zero outside `first ... end - 1`; (maximum, sum)."""
    top = splat(LOWEST)
    for i in range(0, size, LANES):
        top = larger(within(load(row + 4 * i), first - i, end - i, LOWEST), top)
    highest = max_of(top)
    total = splat(ZERO)
    if highest == LOWEST:
        for i in range(0, size, LANES):
            store(row + 4 * i, total)
        return LOWEST, ZERO
    base = splat(highest)
    for i in range(0, size, LANES):
        weight = within(exp(sub(load(row + 4 * i), base)), first - i, end - i, ZERO)
        store(row + 4 * i, weight)
        total = add(total, weight)
    return highest, sum_of(total)


@kernel
def join(sums: int, stats: int, splits: int, sums_step: int, stats_step: int, depth: int, out: int) -> None:
    """Join a row's splits, at these strides in bytes, into out (D,): the weighted mean of their sums."""
    highest = LOWEST
    for s in range(splits):
        highest = max(highest, load_one(stats + s * stats_step))
    total = splat(ZERO)
    for s in range(splits):
        factor = exp(splat(load_one(stats + s * stats_step) - highest))
        total = fma(factor, splat(load_one(stats + s * stats_step + 4)), total)
    for i in range(0, depth, LANES):
        value = splat(ZERO)
        for s in range(splits):
            factor = exp(splat(load_one(stats + s * stats_step) - highest))
            value = fma(factor, load(sums + s * sums_step + 4 * i), value)
        store(out + 4 * i, div(value, total))


ATTEND = _attend("attend", 4, product, stream_fresh, paged_product)
ATTEND_F16 = _attend("attend_f16", 2, product_f16, stream_f16, paged_product_f16)
attend = call_with(ARGUMENTS)  # the code at an address, with what `attend` in `_attend` takes

"""Write rows of x in blocks of 32 numbers, as products with weights of integers read them.

Rounded to int8 by ggml's rule, ties to even:

    d = max |x| / 127,  q = round(x / d),  s = d (sum of q)

A block is 32 int8, d and s as float32, the sum of q as int32, and those of its halves times -32: there the sums with
weights of offset 32 begin (Q6_K). A NaN or infinity makes d = s = NaN.

In float32: 32 of x 2^-n, then the sums of x over the block, its first half and its second, and four bytes unused. n is
where in a column's 32 bits (`integer_formats`) the weight begins that the number meets: no product shifts it.
"""

from typing import Any

import numpy as np
from llvmlite import ir

from kernels.cpu.row_ops import ONE, ZERO
from kernels.cpu.simd import (
    BYTES,
    LANES,
    absolute,
    add,
    lanes,
    larger,
    load,
    max_of,
    mul,
    op,
    rint,
    splat,
    store,
    store_int8,
    store_int32,
    store_one,
    sum_of,
)
from kernels.jit import kernel

BLOCK = 32
DENSE, ROUNDED, SCALED = range(3)  # how a kernel takes rows: as they are, in blocks of int8, or of float32
BLOCK_BYTES = (0, BLOCK + 20, 4 * (BLOCK + 4))  # of each
QUAD_BITS = (0, 8, 16, 0)  # n of each four lines; the last is shifted, for its place has the sign
STEPS = np.float32(127.0)
OFFSET = 32  # of Q6_K's weights
LEAST = np.float32(1e-30)  # of d: the inverse of a smaller one could be infinite


@kernel
def round_row(x: int, size: int, out: int) -> None:
    """Write a row's blocks; `size` floats at x, a multiple of 32."""
    for block in range(size // BLOCK):
        at, to = x + 4 * BLOCK * block, out + BLOCK_BYTES[ROUNDED] * block
        low, high = load(at), load(at + BYTES)
        d = max_of(larger(absolute(low), absolute(high))) / STEPS
        inverse = ZERO
        if d >= LEAST:
            inverse = ONE / d
        else:
            d = ZERO
        low, high = rint(mul(low, splat(inverse))), rint(mul(high, splat(inverse)))
        total = sum_of(add(low, high))
        not_finite = total - total  # else zero
        store_int8(to, low)
        store_int8(to + LANES, high)
        store_one(to + BLOCK, d + not_finite)
        store_one(to + BLOCK + 4, d * total + not_finite)
        store_int32(to + BLOCK + 8, total)
        store_int32(to + BLOCK + 12, -np.float32(OFFSET) * sum_of(low))
        store_int32(to + BLOCK + 16, -np.float32(OFFSET) * sum_of(high))


@op(lanes)
def _scales(b: ir.IRBuilder) -> Any:
    return ir.Constant(ir.VectorType(ir.FloatType(), LANES), [2.0**-bits for bits in QUAD_BITS] * (LANES // 4))


@kernel
def scale_row(x: int, size: int, out: int) -> None:
    """Write a row's blocks in float32; `size` floats at x, a multiple of 32."""
    for block in range(size // BLOCK):
        at, to = x + 4 * BLOCK * block, out + BLOCK_BYTES[SCALED] * block
        low, high = load(at), load(at + BYTES)
        store(to, mul(low, _scales()))
        store(to + BYTES, mul(high, _scales()))
        first, second = sum_of(low), sum_of(high)
        store_one(to + 2 * BYTES, first + second)
        store_one(to + 2 * BYTES + 4, first)
        store_one(to + 2 * BYTES + 8, second)


@kernel
def write_part(form: int, x: int, blocks: int, row: int, depth: int, first: int, size: int) -> None:
    """Write columns `first` and up of a row of x (rows, depth) in blocks; sizes are multiples of BLOCK. DENSE: do
    nothing.
    """
    at = x + 4 * (row * depth + first)
    to = blocks + (row * (depth // BLOCK) + first // BLOCK) * BLOCK_BYTES[form]
    if form == ROUNDED:
        round_row(at, size, to)
    elif form == SCALED:
        scale_row(at, size, to)

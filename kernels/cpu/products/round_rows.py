"""Round rows of x to int8 in blocks of 32, by ggml's rule, ties to even.

    d = max |x| / 127,  q = round(x / d),  s = d (sum of q)

A block is 32 int8, d and s as float32, the sum of q and that of its first half as int32: 48 bytes. A NaN or infinity
makes d = s = NaN.
"""

import numpy as np

from kernels.cpu.row_ops import ONE, ZERO
from kernels.cpu.simd import (
    BYTES,
    LANES,
    absolute,
    add,
    larger,
    load,
    max_of,
    mul,
    rint,
    splat,
    store_int8,
    store_int32,
    store_one,
    sum_of,
)
from kernels.jit import kernel

BLOCK = 32
BLOCK_BYTES = 48
STEPS = np.float32(127.0)
LEAST = np.float32(1e-30)  # of d: the inverse of a smaller one could be infinite


@kernel
def round_row(x: int, size: int, out: int) -> None:
    """Write a row's blocks; `size` floats at x, a multiple of 32."""
    for block in range(size // BLOCK):
        at, to = x + 4 * BLOCK * block, out + BLOCK_BYTES * block
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
        store_int32(to + BLOCK + 12, sum_of(low))


@kernel
def round_part(rounds: int, x: int, rounded: int, row: int, depth: int, first: int, size: int) -> None:
    """Round columns `first` and up of a row of x (rows, depth); sizes are multiples of BLOCK. `rounds` 0: no effect."""
    if rounds != 0:
        to = rounded + (row * (depth // BLOCK) + first // BLOCK) * BLOCK_BYTES
        round_row(x + 4 * (row * depth + first), size, to)

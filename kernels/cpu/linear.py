"""Multiply by weights packed into blocks of sixteen columns, as many blocks as a thread has been
given.

    y = x W^T (+ b)

`pack` lays (N, K) out as (ceil(N / 16), K, 16), so that a block streams from memory in order;
missing columns are zero.
"""

import numpy as np

from kernels.cpu.jit import kernel
from kernels.cpu.row_ops import ZERO
from kernels.cpu.simd import (
    BYTES,
    LANES,
    fma,
    load,
    mul,
    splat,
    store,
)
from kernels.cpu.tile import (
    PAIR_ROWS,
    ROWS,
    height,
    product_more,
    stream,
    stream_half,
    stream_int8,
    stream_pair,
    stream_pair_int8,
)

PANEL = 48  # rows that go over a few blocks before the next rows do: both stay in the second-level cache
AHEAD = 2048  # bytes that memory is asked for before they are needed
CHUNK = 96  # lines of W that more rows than a tile's go over together: 6 KiB


def pack(weight: np.ndarray) -> np.ndarray:
    """Pack a weight: (N, K) float32 -> (ceil(N / 16), K, 16) float32."""
    columns, depth = weight.shape
    whole = weight if columns % LANES == 0 else np.pad(weight, ((0, -columns % LANES), (0, 0)))
    return np.ascontiguousarray(whole.reshape(-1, LANES, depth).transpose(0, 2, 1), np.float32)


def pack_int8(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Round and pack a weight: (N, K) float32 -> (ceil(N / 16), K, 16) int8 and scales (16 ceil(N /
    16),) float32.

    The scales, one a column, are rounded up to 16 significant bits: 127 times one is then a
    float32, and what was rounded once stays the same when it is rounded again.
    """
    scales = np.maximum(np.abs(weight).max(1), np.float32(1e-30)) / np.float32(127)
    scales = ((scales.view(np.uint32) + np.uint32(0xFF)) & np.uint32(0xFFFFFF00)).view(np.float32)
    packed = pack(np.rint(weight / scales[:, None]))
    return packed.astype(np.int8), pack_bias(scales)


def pack_bias(bias: np.ndarray) -> np.ndarray:
    """Pad a bias with zeros: (N,) float32 -> (16 ceil(N / 16),) float32."""
    return np.pad(bias, (0, -len(bias) % LANES))


@kernel
def linear(
    rows: int, x: int, ldx: int, w: int, depth: int, scales: int, bias: int, first: int, end: int, out: int, ldo: int
) -> None:
    """Compute blocks `first ... end - 1` of out = x W^T + b.

    Takes addresses of x (rows, depth) at stride ldx, packed W, the scales of int8 columns (0: W is
    float32), bias (0: none) and out (rows, 16 blocks) at stride ldo; strides in bytes.
    """
    block_bytes = depth * (LANES if scales != 0 else BYTES)
    for top in range(0, rows, PANEL):
        n, of = min(PANEL, rows - top), x + top * ldx
        block = first
        while block < end:
            to, weights = out + top * ldo + block * BYTES, w + block * block_bytes
            count = 2 if n <= PAIR_ROWS and block + 1 < end else 1
            for i in range(count):
                own = 0 if bias == 0 or scales != 0 else bias + (block + i) * BYTES
                begin(n, own, to + i * BYTES, ldo)
            if scales != 0:
                multiply_int8(n, of, ldx, weights, depth, count, to, ldo)
                for i in range(count):
                    own = 0 if bias == 0 else bias + (block + i) * BYTES
                    rescale(n, scales + (block + i) * BYTES, own, to + i * BYTES, ldo)
            else:
                multiply(n, of, ldx, weights, depth, count, to, ldo)
            block += count


@kernel
def begin(rows: int, bias: int, out: int, ldo: int) -> None:
    """Set sixteen columns of out to b, or to zero."""
    values = splat(ZERO) if bias == 0 else load(bias)
    for row in range(rows):
        store(out + row * ldo, values)


@kernel
def multiply(rows: int, x: int, ldx: int, w: int, depth: int, count: int, out: int, ldo: int) -> None:
    """Add x W^T to out for one block, or for two if there are one or two rows.

    More rows than a tile holds go over W in chunks that stay in the first-level cache. The first
    two tiles ask for half of the next chunk each, so that memory is as busy as they are; a chunk's
    sums are stored between as they are.
    """
    if count == 2:
        stream_pair(rows, x, ldx, w, BYTES, depth, out, ldo)
    elif rows <= ROWS:
        stream(rows, x, ldx, w, BYTES, depth, out, ldo, w + AHEAD)
    else:
        one = height(rows)
        two = one + height(rows - one)
        for k in range(0, depth, CHUNK):
            size, of, line = min(CHUNK, depth - k), x + 4 * k, w + k * BYTES
            ask = line + CHUNK * BYTES
            stream_half(one, of, ldx, line, BYTES, size, out, ldo, ask)
            stream_half(
                two - one, of + one * ldx, ldx, line, BYTES, size, out + one * ldo, ldo, ask + size * BYTES // 2
            )
            product_more(rows - two, of + two * ldx, ldx, line, BYTES, size, out + two * ldo, ldo)


@kernel
def multiply_int8(rows: int, x: int, ldx: int, w: int, depth: int, count: int, out: int, ldo: int) -> None:
    """Add x W^T to out for int8 weights, before the columns' scales."""
    if count == 2:
        stream_pair_int8(rows, x, ldx, w, LANES, depth, out, ldo)
    else:
        stream_int8(rows, x, ldx, w, LANES, depth, out, ldo, w + AHEAD)


@kernel
def rescale(rows: int, scales: int, bias: int, out: int, ldo: int) -> None:
    """Compute out = out * scales + b for sixteen columns."""
    factors = load(scales)
    for row in range(rows):
        at = out + row * ldo
        store(at, mul(load(at), factors) if bias == 0 else fma(load(at), factors, load(bias)))

"""y = x W^T (+ b) over weights packed into blocks of sixteen columns, as many blocks as a thread has been given.

`pack` lays (N, K) out as (ceil(N / 16), K, 16), so that a block streams from memory in order; missing columns are zero.
"""

import numpy as np

from kernels.cpu.jit import kernel
from kernels.cpu.lanes import BYTES, LANES, fma, load, mul, store
from kernels.cpu.tile import product, product_int8, product_more

PANEL = 48  # rows that go over a few blocks before the next rows do: both stay in the second-level cache


def pack(weight: np.ndarray) -> np.ndarray:
    """(N, K) float32 -> (ceil(N / 16), K, 16) float32."""
    columns, depth = weight.shape
    whole = weight if columns % LANES == 0 else np.pad(weight, ((0, -columns % LANES), (0, 0)))
    return np.ascontiguousarray(whole.reshape(-1, LANES, depth).transpose(0, 2, 1), np.float32)


def pack_int8(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(N, K) float32 -> (ceil(N / 16), K, 16) int8 and the columns' scales, (16 ceil(N / 16),) float32.

    Scales are rounded up to 16 significant bits: 127 times one is then a float32, and what was rounded once stays the
    same when it is rounded again.
    """
    scales = np.maximum(np.abs(weight).max(1), np.float32(1e-30)) / np.float32(127)
    scales = ((scales.view(np.uint32) + np.uint32(0xFF)) & np.uint32(0xFFFFFF00)).view(np.float32)
    packed = pack(np.rint(weight / scales[:, None]))
    return packed.astype(np.int8), pack_bias(scales)


def pack_bias(bias: np.ndarray) -> np.ndarray:
    """(N,) float32 -> (16 ceil(N / 16),); the missing ones are zero."""
    return np.pad(bias, (0, -len(bias) % LANES))


@kernel
def linear(
    rows: int, x: int, ldx: int, w: int, depth: int, scales: int, bias: int, first: int, end: int, out: int, ldo: int
) -> None:
    """Blocks `first ... end - 1` of out = x W^T + b.

    Addresses of x (rows, depth) at stride ldx, packed W, the scales of int8 columns (0: W is float32), bias (0: none)
    and out (rows, 16 blocks) at stride ldo, bytes.
    """
    block_bytes = depth * (LANES if scales != 0 else BYTES)
    for top in range(0, rows, PANEL):
        n = min(PANEL, rows - top)
        for block in range(first, end):
            to, of = out + top * ldo + block * BYTES, w + block * block_bytes
            if scales != 0:
                product_int8(n, x + top * ldx, ldx, of, LANES, depth, to, ldo)
                rescale(n, scales + block * BYTES, 0 if bias == 0 else bias + block * BYTES, to, ldo)
            elif bias == 0:
                product(n, x + top * ldx, ldx, of, BYTES, depth, to, ldo)
            else:
                values = load(bias + block * BYTES)
                for row in range(n):
                    store(to + row * ldo, values)
                product_more(n, x + top * ldx, ldx, of, BYTES, depth, to, ldo)


@kernel
def rescale(rows: int, scales: int, bias: int, out: int, ldo: int) -> None:
    """out = out * scales + b for sixteen columns."""
    factors = load(scales)
    for row in range(rows):
        at = out + row * ldo
        store(at, mul(load(at), factors) if bias == 0 else fma(load(at), factors, load(bias)))

"""Test products with weights of integers: rows in blocks, sums of each type bit for bit as specified, and the same
bits in any batch.
"""

from collections.abc import Iterator

import gguf
import numba
import numpy as np
import pytest

from kernels.cpu.products.integer_formats import INTEGER_FORMATS
from kernels.cpu.products.linear import LINEAR, call_linear
from kernels.cpu.products.pack import pack_bias, pack_stored
from kernels.cpu.products.row_blocks import (
    BLOCK,
    BLOCK_BYTES,
    LEAST,
    ONE,
    QUAD_BITS,
    ROUNDED,
    SCALED,
    STEPS,
    ZERO,
    write_part,
)
from kernels.cpu.simd import LANES
from tests.kernels.cpu.products import test_formats
from tests.kernels.cpu.products.test_formats import dequantised

ROWS = (*range(1, 19), 48, 49, 67)
TYPES = list(INTEGER_FORMATS)


def round_rows_reference(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Round (N, K) float32 to int8 (N, K), d and s (N, K / 32), sums of q in each half block (N, K / 32, 2) int32."""
    blocks = x.reshape(len(x), -1, BLOCK)
    d = np.abs(blocks).max(-1) / STEPS
    d = np.where(d >= LEAST, d, ZERO)
    inverse = np.divide(ONE, d, out=np.zeros_like(d), where=d > 0)
    q = np.rint(blocks * inverse[..., None]).astype(np.int8)
    n = q.reshape(*q.shape[:2], 2, BLOCK // 2).sum(-1, dtype=np.int32)
    return q.reshape(x.shape), d, d * n.sum(-1).astype(np.float32), n


@numba.njit
def apply(code, x, w, bias, out, first, end):
    call_linear(
        code, x.shape[0], x.ctypes.data, x.shape[1] * x.shape[2], w.ctypes.data, x.shape[1] * 32,
        bias.ctypes.data, first, end, out.ctypes.data, 4 * out.shape[1],
    )  # fmt: skip


@numba.njit
def write_each(form, x, out):
    for row in range(x.shape[0]):
        for first in range(0, x.shape[1], 32):
            write_part(form, x.ctypes.data, out.ctypes.data, row, x.shape[1], first, 32)


def raw(name: str, columns: int, depth: int, rng: np.random.Generator) -> np.ndarray:
    """Return a random weight's rows in a type; of random bytes where gguf knows no rounding to it."""
    if name.endswith("_K"):
        return test_formats.raw(name, columns, depth, rng)
    weight = rng.standard_normal((columns, depth), dtype=np.float32)
    return gguf.quants.quantize(weight, gguf.GGMLQuantizationType[name])


def depth_of(name: str) -> int:
    """Return the depth of a weight of several groups."""
    return max(224, 3 * INTEGER_FORMATS[name].depth)


def halves_at(name: str) -> list[int]:
    """Return where in a type's block its f16 are: the scale, and the minimum where it has one."""
    return [high - 1 for high in test_formats.HALVES.get(name, (1,))]


def with_halves(name: str, blocks: np.ndarray, d: float, m: float) -> np.ndarray:
    """Return blocks (..., bytes of one) with another scale and minimum."""
    out = blocks.copy()
    for at, value in zip(halves_at(name), (d, m), strict=False):
        out[..., at : at + 2] = np.array([value], np.float16).view(np.uint8)
    return out


def meaning(name: str, stored: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what a block of 32 lines is made of, by gguf's own reading: integers (N, K), and of each block a
    scale and a minimum (N, K / 32) float32, without which the minimum is 0.

    A number is scale * integer + minimum. Integers of Q6_K are multiplied by the factors of sixteen lines.
    """
    size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]][1]
    blocks = stored.reshape(len(stored), -1, size)
    d, *m = (blocks[..., at : at + 2].copy().view(np.float16).astype(np.float32) for at in halves_at(name))
    blocks = with_halves(name, blocks, 1.0, 0.0)
    if name in ("Q4_K", "Q5_K"):
        factors = gguf.quants.Q4_K.get_scale_min(blocks[..., 4:16].reshape(-1, 12))
        sc, mn = (each.reshape(*d.shape[:2], 8).astype(np.float32) for each in factors)
        d, m = d * sc, [-m[0] * mn]
        blocks[..., 4:16] = np.repeat(np.array([1, 0, 1], np.uint8), 4)  # all sc 1
    integers = dequantised(name, blocks.reshape(len(stored), -1))
    shape = len(stored), integers.shape[1] // BLOCK
    scale = np.repeat(d.reshape(len(stored), -1), shape[0] * shape[1] // d.size, -1)
    return integers.astype(np.int64), scale, m[0].reshape(shape) if m else np.zeros(shape, np.float32)


def fused(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Compute x y + z of float32, rounded once.

    In float64 the product is exact. The sum is rounded to odd there: the last bit says whether more was
    beyond it, which is all that rounding to float32 needs.
    """
    product = x.astype(np.float64) * y
    total = product + z
    back = total - product
    beyond = (product - (total - back)) + (z - back)
    is_even = total.view(np.int64) & 1 == 0
    odd = np.where((beyond != 0) & is_even, np.nextafter(total, np.copysign(np.inf, beyond)), total)
    return odd.astype(np.float32)


def product_reference(name: str, rows: np.ndarray, stored: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Multiply rounded rows (M, K / 32, 52) by a weight's rows of a file (N, bytes), bias (N,) -> (M, N) float32; the
    specification of every type."""
    q, d, s, _ = parts(rows)
    integers, scale, minimum = meaning(name, stored)
    out = np.tile(bias, (len(rows), 1))
    for block in range(d.shape[1]):
        lines = slice(BLOCK * block, BLOCK * (block + 1))
        whole = (q[:, lines].astype(np.int64) @ integers[:, lines].T).astype(np.float32)
        out = fused(scale[:, block] * d[:, block, None], whole, out)
        out = fused(minimum[:, block], np.broadcast_to(s[:, block, None], out.shape), out)
    return out


def scaled_reference(name: str, x: np.ndarray, packed: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Multiply float32 rows (M, K) by a packed weight (`read`), bias (N,) -> (M, N) float32; the specification of every
    type."""
    q, factor, minimum = read(name, packed)
    out, size = np.tile(bias, (len(x), 1)), x.shape[1] // factor.shape[1]
    for i, first in enumerate(range(0, x.shape[1], size)):
        chain = np.zeros_like(out)
        for line in range(first, first + size):
            chain = fused(x[:, line, None], q[:, line], chain)
        out = fused(factor[:, i], chain, out)
        total = added_by_halves(x[:, first : first + 16])
        if size == BLOCK:
            total = total + added_by_halves(x[:, first + 16 : first + BLOCK])
        out = fused(minimum[:, i], total[:, None], out)
    return out


def added_by_halves(x: np.ndarray) -> np.ndarray:
    """(M, 16) -> (M,)"""
    while x.shape[1] > 1:
        x = x[:, : x.shape[1] // 2] + x[:, x.shape[1] // 2 :]
    return x[:, 0]


def written(x: np.ndarray, form: int) -> np.ndarray:
    out = np.zeros((len(x), x.shape[1] // BLOCK, BLOCK_BYTES[form]), np.uint8)
    write_each(form, x, out)
    return out


def times(name: str, rows: np.ndarray, w: np.ndarray, bias: np.ndarray, first: int = 0, end: int = -1) -> np.ndarray:
    """Multiply rows in blocks, of either form."""
    out = np.zeros((len(rows), len(w) * LANES), np.float32)
    code = LINEAR[BLOCK_BYTES.index(rows.shape[2])][name].address
    apply(code, rows, w, bias, out, first, len(w) if end < 0 else end)
    return out


def parts(rows: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return q, d, s and the sums of q over blocks, and over their halves times -32 (M, K / 32, 3) in rounded rows."""
    q = rows[..., :BLOCK].view(np.int8)
    d, s = (rows[..., at : at + 4].copy().view(np.float32)[..., 0] for at in (32, 36))
    return q.reshape(len(rows), -1), d, s, rows[..., 40:52].copy().view(np.int32)


def test_rows_are_rounded_as_specified():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 192), dtype=np.float32) * rng.choice([1e-36, 1e-3, 1.0, 1e20], (40, 1))
    x = x.astype(np.float32)
    x[3] = 0.0
    x[4, 32:64] = 0.0
    q, d, s, total = parts(written(x, ROUNDED))
    expected = round_rows_reference(x)
    assert (q == expected[0]).all() and (d == expected[1]).all() and (s == expected[2]).all()
    halves = expected[3]
    assert (total == np.stack([halves.sum(-1), *-32 * np.moveaxis(halves, -1, 0)], -1)).all() and halves[..., 0].any()
    large = d > 0
    error = np.abs(q.reshape(len(x), -1, BLOCK) * d[..., None] - x.reshape(len(x), -1, BLOCK)).max(-1)
    assert (error[large] <= 0.5001 * d[large]).all() and large.sum() > 100


def test_rows_are_scaled_as_specified():
    x = np.random.default_rng(0).standard_normal((3, 96), dtype=np.float32)
    floats = written(x, SCALED).view(np.float32)
    assert (floats[..., :BLOCK] == x.reshape(3, 3, BLOCK) * np.tile(2.0 ** -np.array(QUAD_BITS), BLOCK // 4)).all()
    first, second = (added_by_halves(x.reshape(-1, 16))[i::2].reshape(3, 3) for i in range(2))
    assert (floats[..., BLOCK : BLOCK + 3] == np.stack([first + second, first, second], -1)).all()


@pytest.mark.parametrize("form", [ROUNDED, SCALED])
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", TYPES)
def test_a_block_that_is_not_finite_makes_products_that_are_no_numbers(name, odd, form):
    rng = np.random.default_rng(1)
    depth = depth_of(name)
    x = rng.standard_normal((2, depth), dtype=np.float32)
    x[1, 40] = odd
    w = pack_stored(name, raw(name, 16, depth, rng), depth)
    out = times(name, written(x, form), w, np.zeros(16, np.float32))
    is_lost = np.isnan(out[1]) if form == ROUNDED else ~np.isfinite(out[1])
    assert np.isfinite(out[0]).all() and is_lost.all()


@pytest.mark.parametrize("form", [ROUNDED, SCALED])
@pytest.mark.parametrize("columns", [48, 61])
@pytest.mark.parametrize("name", TYPES)
def test_a_product_has_the_bits_that_are_specified_in_any_batch(name, columns, form):
    rng = np.random.default_rng(columns)
    depth = depth_of(name)
    stored = raw(name, columns, depth, rng)
    w = pack_stored(name, stored, depth)
    bias = pack_bias(rng.standard_normal(columns, dtype=np.float32))
    x = rng.standard_normal((max(ROWS), depth), dtype=np.float32)
    rows = written(x, form)
    whole = times(name, rows, w, bias)
    if form == ROUNDED:
        assert (whole[:, :columns] == product_reference(name, rows, stored, bias[:columns])).all()
    else:
        assert (whole == scaled_reference(name, x, w, bias)).all()
    assert (whole[:, columns:] == 0.0).all()
    for count in ROWS:
        assert (times(name, rows[:count], w, bias) == whole[:count]).all(), count
    for row in (0, 5, 66):
        assert (times(name, rows[row : row + 1], w, bias) == whole[row]).all()
    for block in range(len(w)):  # alone, and not two at once
        part = times(name, rows[:2], w, bias, block, block + 1)[:, block * LANES : (block + 1) * LANES]
        assert (part == whole[:2, block * LANES : (block + 1) * LANES]).all(), block


@pytest.mark.parametrize("name", TYPES)
def test_a_product_is_that_of_the_rounded_rows_and_close_to_the_float32_one(name):
    rng = np.random.default_rng(3)
    depth = depth_of(name)
    stored = raw(name, 48, depth, rng)
    dense = dequantised(name, stored).astype(np.float64)
    x = rng.standard_normal((40, depth), dtype=np.float32)
    rows = written(x, ROUNDED)
    q, d, _, _ = parts(rows)
    found = times(name, rows, pack_stored(name, stored, depth), np.zeros(48, np.float32))
    meant = (q.reshape(len(x), -1, BLOCK) * d[..., None].astype(np.float64)).reshape(x.shape) @ dense.T
    np.testing.assert_allclose(found, meant, rtol=1e-5, atol=1e-5 * meant.std())
    exact = x @ dense.T
    in_floats = times(name, written(x, SCALED), pack_stored(name, stored, depth), np.zeros(48, np.float32))
    np.testing.assert_allclose(in_floats, exact, rtol=1e-5, atol=1e-5 * exact.std())
    assert 0.0 < np.sqrt(np.mean((found - exact) ** 2)) < 0.01 * exact.std()


def unpacked(parts: np.ndarray, bits: int) -> np.ndarray:
    """(3, parts, bytes) -> (3, 8 parts, 16, 4): each four lines of sixteen columns."""
    found = np.zeros((*parts.shape[:2], 8, LANES, 4), np.uint8)
    low, after = parts[..., : 256 if bits < 8 else 512], parts[..., 256:]
    for four in range(8):
        if bits == 8:
            found[:, :, four] = low.reshape(*low.shape[:2], 8, LANES, 4)[:, :, four]
            continue
        found[:, :, four] = low.reshape(*low.shape[:2], 4, LANES, 4)[:, :, four // 2] >> four % 2 * 4 & 15
        if bits == 5:
            found[:, :, four] |= (after.reshape(*low.shape[:2], LANES, 4) >> four & 1) << 4
        if bits == 6:
            pairs = after.reshape(*low.shape[:2], 2, LANES, 4)[:, :, four // 4]
            found[:, :, four] |= (pairs >> four % 4 * 2 & 3) << 4
    return found.reshape(len(parts), -1, LANES, 4)


def read(name: str, packed: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Read from the layout, by a way that shares nothing with the kernels: a weight is factor * q + minimum.

    q (N, K); factor and minimum (N, K / 16) for Q6_K, else (N, K / 32), float32.
    """
    form = INTEGER_FORMATS[name]
    columns, depth = len(packed) * LANES, packed.shape[1] * form.depth
    lines = unpacked(packed[..., form.header_bytes :].reshape(len(packed), -1, form.part_bytes), form.bits)
    q = lines.transpose(0, 2, 1, 3).reshape(columns, depth).astype(np.float32)
    is_k = form.parts > 1
    has_minimum = len(halves_at(name)) == 2
    size = 64 if has_minimum else 32
    halves = packed[..., :size].copy().view(np.float16).reshape(*packed.shape[:2], -1, LANES)
    halves = halves.transpose(2, 0, 3, 1).reshape(-1, columns, packed.shape[1], 1).astype(np.float32)
    factors = np.ones((2, columns, depth // BLOCK), np.float32)
    if is_k:
        bytes_of = packed[..., size : form.header_bytes].view(np.int8).reshape(*packed.shape[:2], 8, 2, LANES)
        factors = bytes_of.transpose(3, 0, 4, 1, 2).reshape(2, columns, -1).astype(np.float32)
    scales = (halves * factors.reshape(2, 1, columns, packed.shape[1], -1)).reshape(2, -1, columns, depth // BLOCK)
    if has_minimum:
        return q, scales[0, 0], -scales[1, 1] if is_k else scales[1, 1]
    factor = np.stack([scales[0, 0], scales[1, 0]], -1).reshape(columns, -1) if is_k else scales[0, 0]
    return q, factor, factor * -np.float32(form.offset)


@pytest.mark.parametrize("name", TYPES)
def test_packed_weights_are_those_of_the_file(name):
    depth = depth_of(name)
    stored = raw(name, 48, depth, np.random.default_rng(4))
    packed = pack_stored(name, stored, depth)
    q, factor, minimum = read(name, packed)
    factor, minimum = (np.repeat(values, depth // values.shape[1], -1) for values in (factor, minimum))
    found = factor * q + minimum
    assert (found == dequantised(name, stored)).all()
    more = {
        "Q5_0": 34 / 22,
        "Q4_K": 148 / 144,
        "Q5_K": 180 / 176,
    }  # bytes for bits in planes, and for factors of six bits
    assert packed.nbytes == pytest.approx(stored.nbytes * more.get(name, 1), rel=1e-9)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("name", TYPES)
def test_the_largest_products_do_not_overflow(name, sign):
    """All weights and all numbers of a row at their largest: 16 bits would not hold a pair of some types."""
    for stored, x in largest(name, sign):
        found = times(name, written(x, ROUNDED), pack_stored(name, stored, x.shape[1]), np.zeros(16, np.float32))
        meant = x.astype(np.float64) @ dequantised(name, stored).T
        np.testing.assert_allclose(found, meant, rtol=1e-5)


def largest(name: str, sign: float) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield a weight's rows and a row that it is multiplied by."""
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    factors = {"Q4_K": slice(4, 16), "Q5_K": slice(4, 16), "Q6_K": slice(192, 208)}.get(name, slice(0))
    for bits in (0xFF, 0x00, 0x7F, 0x80):
        for factor in (0xFF, 0x7F, 0x80):
            blocks = np.full((16, size), bits, np.uint8)
            blocks[:, factors] = factor
            yield with_halves(name, blocks, 1.0, 1.0), np.full((1, block), sign, np.float32)

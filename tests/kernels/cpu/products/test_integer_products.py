"""Test integer products: rows rounded by ggml's rule, ggml's sums, and the same bits in any batch and on
processors of several ages.
"""

import gguf
import numpy as np
import pytest

from kernels.cpu.jit import kernel
from kernels.cpu.products.integer_tile import INTEGER_FORMATS
from kernels.cpu.products.linear import INTEGER_LINEAR, call_linear
from kernels.cpu.products.pack import pack_bias, pack_integer
from kernels.cpu.products.round_rows import BLOCK, BLOCK_BYTES, round_row, round_rows_reference
from kernels.cpu.simd import LANES

ROWS = (*range(1, 19), 48, 49, 67)
TYPES = list(INTEGER_FORMATS)


@kernel
def apply(code, x, w, bias, out, first, end):
    call_linear(
        code, x.shape[0], x.ctypes.data, x.shape[1] * 48, w.ctypes.data, x.shape[1] * 32,
        bias.ctypes.data, first, end, out.ctypes.data, 4 * out.shape[1],
    )  # fmt: skip


@kernel
def round_each(x, out):
    for row in range(x.shape[0]):
        round_row(x[row].ctypes.data, x.shape[1], out[row].ctypes.data)


def raw(name: str, columns: int, depth: int, rng: np.random.Generator) -> np.ndarray:
    """Return a random weight's rows in a type."""
    weight = rng.standard_normal((columns, depth), dtype=np.float32)
    return gguf.quants.quantize(weight, gguf.GGMLQuantizationType[name])


def rounded(x: np.ndarray) -> np.ndarray:
    out = np.empty((len(x), x.shape[1] // BLOCK, BLOCK_BYTES), np.uint8)
    round_each(x, out)
    return out


def times(name: str, rows: np.ndarray, w: np.ndarray, bias: np.ndarray, first: int = 0, end: int = -1) -> np.ndarray:
    out = np.zeros((len(rows), len(w) * LANES), np.float32)
    apply(INTEGER_LINEAR[name].address, rows, w, bias, out, first, len(w) if end < 0 else end)
    return out


def parts(rows: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return q, d, s and the sums of q in rounded rows."""
    q = rows[..., :BLOCK].view(np.int8)
    d, s = (rows[..., at : at + 4].copy().view(np.float32)[..., 0] for at in (32, 36))
    return q.reshape(len(rows), -1), d, s, rows[..., 40:44].copy().view(np.int32)[..., 0]


def test_rows_are_rounded_as_specified():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 192), dtype=np.float32) * rng.choice([1e-36, 1e-3, 1.0, 1e20], (40, 1))
    x = x.astype(np.float32)
    x[3] = 0.0
    x[4, 32:64] = 0.0
    q, d, s, total = parts(rounded(x))
    expected = round_rows_reference(x)
    assert (q == expected[0]).all() and (d == expected[1]).all() and (s == expected[2]).all()
    assert (total == q.reshape(len(x), -1, BLOCK).sum(-1, dtype=np.int32)).all()
    large = d > 0
    error = np.abs(q.reshape(len(x), -1, BLOCK) * d[..., None] - x.reshape(len(x), -1, BLOCK)).max(-1)
    assert (error[large] <= 0.5001 * d[large]).all() and large.sum() > 100


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_a_block_that_is_not_finite_makes_products_that_are_no_numbers(odd):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((2, 64), dtype=np.float32)
    x[1, 40] = odd
    w = pack_integer("Q8_0", raw("Q8_0", 16, 64, rng), 64)
    out = times("Q8_0", rounded(x), w, np.zeros(16, np.float32))
    assert np.isfinite(out[0]).all() and np.isnan(out[1]).all()


@pytest.mark.parametrize("columns", [48, 61])
@pytest.mark.parametrize("name", TYPES)
def test_a_product_is_that_of_the_rounded_rows_with_the_same_bits_in_any_batch(name, columns):
    rng = np.random.default_rng(columns)
    depth = 224
    stored = raw(name, columns, depth, rng)
    w = pack_integer(name, stored, depth)
    dense = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType[name])
    bias = pack_bias(rng.standard_normal(columns, dtype=np.float32))
    x = rng.standard_normal((max(ROWS), depth), dtype=np.float32)
    rows = rounded(x)
    q, d, _, _ = parts(rows)
    meant = (q.reshape(len(x), -1, BLOCK) * d[..., None].astype(np.float64)).reshape(x.shape)
    whole = times(name, rows, w, bias)
    exact = meant @ dense.T.astype(np.float64) + bias[:columns]
    np.testing.assert_allclose(whole[:, :columns], exact, rtol=1e-5, atol=1e-5)
    assert (whole[:, columns:] == 0.0).all()
    for count in ROWS:
        assert (times(name, rows[:count], w, bias) == whole[:count]).all(), count
    for row in (0, 5, 66):
        assert (times(name, rows[row : row + 1], w, bias) == whole[row]).all()
    for block in range(len(w)):  # alone, and not two at once
        part = times(name, rows[:2], w, bias, block, block + 1)[:, block * LANES : (block + 1) * LANES]
        assert (part == whole[:2, block * LANES : (block + 1) * LANES]).all(), block


def test_the_largest_products_do_not_overflow():
    """All weights and all numbers of a row at their largest: 16 bits would not hold a pair of some types."""
    for name in TYPES:
        for sign in (1.0, -1.0):
            weight = np.full((16, 64), -1.0, np.float32)
            weight[:, ::2] = sign
            stored = gguf.quants.quantize(weight, gguf.GGMLQuantizationType[name])
            dense = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType[name])
            x = np.ones((1, 64), np.float32)
            x[:, ::2] = sign
            found = times(name, rounded(x), pack_integer(name, stored, 64), np.zeros(16, np.float32))
            np.testing.assert_allclose(found, x @ dense.T, rtol=1e-5, atol=1e-4)


def test_rows_of_part_of_a_group_are_refused():
    with pytest.raises(ValueError, match="whole groups"):
        pack_integer("Q4_0", np.zeros((16, 27), np.uint8), 48)

"""Test products, exponentials and packed weights of the CPU's kernels: right, and the same bits in
any batch.
"""

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.cpu.products.linear import CHUNK, LINEAR, call_linear, linear
from kernels.cpu.products.pack import CACHE_LINE, pack, pack_bias
from kernels.cpu.products.paged import paged_product
from kernels.cpu.products.row_blocks import DENSE
from kernels.cpu.products.tile import ROWS, product, product_more
from kernels.cpu.simd import (
    LANES,
    exp,
    load,
    max_of,
    store,
    sum_of,
    within,
)

rng = np.random.default_rng(0)


@numba.njit
def each_exp(x, out):
    for i in range(0, len(x), LANES):
        store(out.ctypes.data + 4 * i, exp(load(x.ctypes.data + 4 * i)))


@numba.njit
def folds(x, first, end):
    v = within(load(x.ctypes.data), first, end, np.float32(-1.0))
    return sum_of(v), max_of(v)


@numba.njit
def multiply(x, w, out, more):
    call = (x.shape[0], x.ctypes.data, 4 * x.shape[1], w.ctypes.data, 4 * LANES, x.shape[1], out.ctypes.data, 4 * LANES)
    if more:
        product_more(*call)
    else:
        product(*call)


@numba.njit
def multiply_pages(x, numbers, w, out):
    paged_product(
        x.shape[0], x.ctypes.data, 4 * x.shape[1], numbers.ctypes.data, w.ctypes.data, 4 * w.shape[1] * LANES,
        w.shape[1], x.shape[1], out.ctypes.data, 4 * LANES,
    )  # fmt: skip


@numba.njit
def apply(x, w, bias, out, first, end):
    linear(
        x.shape[0], x.ctypes.data, 4 * x.shape[1], w.ctypes.data, x.shape[1],
        bias.ctypes.data if len(bias) else 0, first, end, out.ctypes.data, 4 * out.shape[1],
    )  # fmt: skip


@numba.njit
def apply_by_address(code, x, w, out):
    call_linear(
        code, x.shape[0], x.ctypes.data, 4 * x.shape[1], w.ctypes.data, x.shape[1],
        0, 0, w.shape[0], out.ctypes.data, 4 * out.shape[1],
    )  # fmt: skip


def random(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


NONE = np.zeros(0, np.float32)


def test_exp_is_right_to_the_last_places():
    x = np.concatenate([np.linspace(-87, 88, 16 * 4000), np.zeros(16)]).astype(np.float32)
    out = np.empty_like(x)
    each_exp(x, out)
    exact = np.exp(x.astype(np.float64))
    assert (np.abs(out - exact) / exact).max() < 2 * 2.0**-24 * 2
    assert (out[-16:] == 1.0).all(), "the one that softmax rests on"


def test_exp_of_nan_is_nan():
    x = np.full(16, np.nan, np.float32)
    x[1:4] = -np.inf, -90.0, -1e30
    out = np.empty_like(x)
    each_exp(x, out)
    assert np.isnan(out[0]) and np.isnan(out[4:]).all()
    assert (out[1:4] == 0.0).all()


@settings(deadline=None)  # the first call compiles
@given(st.integers(-20, 40), st.integers(-20, 40))
def test_lanes_outside_the_bounds_are_replaced(first, end):
    x = np.arange(1, 17, dtype=np.float32)
    kept = [x[i] if first <= i < end else -1.0 for i in range(16)]
    assert folds(x, first, end) == (sum(kept), max(kept))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 20), st.integers(1, 70), st.booleans())
def test_a_rows_product_is_right_with_the_same_bits_in_any_batch(rows, depth, more):
    x, w = random(rows, depth), random(depth, LANES)
    out = np.ones((rows, LANES), np.float32)
    multiply(x, w, out, more)
    np.testing.assert_allclose(out, x @ w + more, rtol=1e-4, atol=1e-4)
    for row in range(rows):
        alone = np.ones((1, LANES), np.float32)
        multiply(x[row : row + 1].copy(), w, alone, more)
        assert (alone[0] == out[row]).all()


@pytest.mark.parametrize("columns", [16, 48, 61])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("depth", [33, 2 * CHUNK + 9])
def test_a_linear_layer_is_its_definition_in_any_pieces(columns, with_bias, depth):
    x, weight = random(2 * ROWS + 37, depth), random(columns, depth)
    bias = random(columns) if with_bias else NONE
    blocks = -(-columns // LANES)
    packed, own = pack(weight), pack_bias(bias) if with_bias else NONE
    out = np.empty((len(x), blocks * LANES), np.float32)
    apply(x, packed, own, out, 0, blocks)
    exact = x.astype(np.float64) @ weight.T.astype(np.float64) + (bias if with_bias else 0.0)
    np.testing.assert_allclose(out[:, :columns], exact, rtol=1e-4, atol=2e-4)
    assert (out[:, columns:] == 0.0).all()
    pieces = np.empty_like(out)
    for block in reversed(range(blocks)):
        for top, end in ((0, 1), (1, 8), (8, len(x))):
            part = np.empty((end - top, blocks * LANES), np.float32)
            apply(x[top:end].copy(), packed, own, part, block, block + 1)
            pieces[top:end, block * LANES : (block + 1) * LANES] = part[:, block * LANES : (block + 1) * LANES]
    assert (pieces == out).all()
    for rows in range(1, 3 * ROWS):  # one or two take two blocks at once, many go over W in chunks
        few = np.empty((rows, blocks * LANES), np.float32)
        apply(x[:rows].copy(), packed, own, few, 0, blocks)
        assert (few == out[:rows]).all(), rows


def test_a_kernel_behind_an_address_is_the_kernel():
    x, packed = random(9, 96), pack(random(48, 96))
    expected, found = (np.empty((9, 48), np.float32) for _ in range(2))
    apply(x, packed, NONE, expected, 0, 3)
    apply_by_address(LINEAR[DENSE]["F32"].address, x, packed, found)
    assert (found == expected).all()


def test_packed_weights_begin_with_a_cache_line():
    assert all(pack(random(48, depth)).ctypes.data % CACHE_LINE == 0 for depth in range(16, 40))


@pytest.mark.parametrize("size", [16, 64])
@pytest.mark.parametrize("lines", [1, 15, 16, 17, 64, 200])
@pytest.mark.parametrize("rows", [1, 6, 7, 48])
def test_lines_in_pages_give_the_bits_of_lines_in_a_row(rows, lines, size):
    x, w = random(rows, lines), random(lines, LANES)
    count = -(-lines // size)
    numbers = rng.permutation(count + 5)[:count]
    pages = np.full((count + 5, size, LANES), np.nan, np.float32)
    for line in range(lines):
        pages[numbers[line // size], line % size] = w[line]
    expected, found = np.empty((rows, LANES), np.float32), np.empty((rows, LANES), np.float32)
    multiply(x, w, expected, False)
    multiply_pages(x, numbers, pages, found)
    assert (found == expected).all()

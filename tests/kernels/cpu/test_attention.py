"""Test attention over pages on the CPU: its definition, and the same bits in whatever tile or
split.
"""

import numba
import numpy as np
import pytest

from kernels.cpu.attention import ATTEND, ATTEND_F16, FIRST_SPLIT, SPLIT, attend, join, splits_of
from kernels.cpu.simd import LANES

NO_WINDOW = 2**62
PAGE, DEPTH, FOLD = 32, 32, 3
rng = np.random.default_rng(1)


@numba.njit
def one_tile(code, q, position, window, pages, keys, values, out):
    """Attend a tile: scaled queries (rows, FOLD, D) at positions from `position` on; returns the
    same shape."""
    rows = q.shape[0]
    lines, splits = rows * FOLD, splits_of(position + rows)
    scores = np.empty((lines, SPLIT), np.float32)
    sums = np.empty((splits, lines, DEPTH), np.float32)
    stats = np.empty((splits, lines, 2), np.float32)
    for split in range(splits):
        attend(
            code, q.ctypes.data, rows, FOLD, position, split, window, pages.ctypes.data, keys.ctypes.data,
            values.ctypes.data, keys.itemsize * DEPTH * PAGE, PAGE, DEPTH, scores.ctypes.data,
            sums.ctypes.data + 4 * split * lines * DEPTH, stats.ctypes.data + 8 * split * lines,
        )  # fmt: skip
    for line in range(lines):
        join(
            sums.ctypes.data + 4 * line * DEPTH, stats.ctypes.data + 8 * line, splits,
            4 * lines * DEPTH, 8 * lines, DEPTH, out.ctypes.data + 4 * line * DEPTH,
        )  # fmt: skip


class Cache:
    """A sequence's keys and values in pages that lie anywhere; slots that were never written hold
    NaN."""

    def __init__(self, tokens: int, dtype: type = np.float32) -> None:
        self.k, self.v = rng.standard_normal((2, tokens, DEPTH)).astype(dtype)
        self.q = rng.standard_normal((tokens, FOLD, DEPTH), dtype=np.float32)
        count = -(-tokens // PAGE)
        self.pages = rng.permutation(count + 3)[:count].astype(np.int64)
        self.keys = np.full((count + 3, PAGE // LANES, DEPTH, LANES), np.nan, dtype)
        self.values = np.full((count + 3, DEPTH // LANES, PAGE, LANES), np.nan, dtype)
        for i in range(tokens):
            page, offset = self.pages[i // PAGE], i % PAGE
            self.keys[page, offset // LANES, :, offset % LANES] = self.k[i]
            self.values[page, :, offset] = self.v[i].reshape(-1, LANES)

    def attend(self, first: int, rows: int, window: int = NO_WINDOW) -> np.ndarray:
        out = np.empty((rows, FOLD, DEPTH), np.float32)
        q = self.q[first : first + rows].copy()
        code = (ATTEND if self.keys.itemsize == 4 else ATTEND_F16).address
        keys, values = (held.view(f"i{held.itemsize}") for held in (self.keys, self.values))  # numba lacks float16
        one_tile(code, q, first, window, self.pages, keys, values, out)
        return out

    def exact(self, position: int, window: int = NO_WINDOW) -> np.ndarray:
        seen = slice(max(0, position + 1 - window), position + 1)
        scores = self.q[position].astype(np.float64) @ self.k[seen].T.astype(np.float64)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return weights @ self.v[seen] / weights.sum(-1, keepdims=True)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("window", [NO_WINDOW, 1, 7, 40, SPLIT + 9])
@pytest.mark.parametrize("first", [0, 5, 31, 100, FIRST_SPLIT - 4, SPLIT - 4, SPLIT + 3, 3 * SPLIT - 1])
def test_rows_are_their_definition_and_keep_their_bits(first, window, dtype):
    cache = Cache(first + 8, dtype)
    tile = cache.attend(first, 8, window)
    for i in range(8):
        np.testing.assert_allclose(tile[i], cache.exact(first + i, window), rtol=2e-4, atol=2e-5)
    for rows in ([1] * 8, [3, 5], [7, 1]):
        parts, at = [], first
        for n in rows:
            parts.append(cache.attend(at, n, window))
            at += n
        assert (np.concatenate(parts) == tile).all(), rows


def test_nan_reaches_only_rows_that_see_its_key():
    cache = Cache(60)
    cache.keys[cache.pages[1], 0, 0, 3] = np.nan
    tile = cache.attend(30, 8)
    assert np.isfinite(tile[:5]).all() and np.isnan(tile[5:]).all()

"""Test that a row read from a packed weight is what gguf dequantises of it, for every type."""

import gguf
import numba
import numpy as np
import pytest

from kernels.cpu.products.embedding import ROW, call_row
from kernels.cpu.products.pack import STORED, pack, pack_stored
from tests.kernels.cpu.products.test_formats import dequantised, raw

COLUMNS = 61  # no multiple of sixteen


@numba.njit
def rows_of(code, w, depth, out):
    for number in range(len(out)):
        call_row(code, w.ctypes.data, depth, number, out[number].ctypes.data)


def read(kind: str, packed: np.ndarray, depth: int) -> np.ndarray:
    out = np.full((COLUMNS, depth), np.nan, np.float32)
    rows_of(ROW[kind].address, packed.reshape(len(packed), -1).view(np.uint8), depth, out)
    return out


@pytest.mark.parametrize("name", list(STORED))
@pytest.mark.parametrize("groups", [1, 7])
def test_a_row_is_what_the_file_means(name, groups):
    depth = groups * STORED[name].depth
    depth += -depth % gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]][0]
    stored = raw(name, COLUMNS, depth, np.random.default_rng(groups))
    found = read(name, pack_stored(name, stored, depth), depth)
    expected = dequantised(name, stored)
    assert expected.any() and (found == expected).all()
    if not getattr(STORED[name], "offset", 0):  # else zeros may differ in sign: d q - 8 d, which no sum shows
        assert found.tobytes() == expected.tobytes()


def test_a_row_of_floats_is_itself():
    weight = np.random.default_rng(0).standard_normal((COLUMNS, 48), dtype=np.float32)
    assert read("F32", pack(weight), 48).tobytes() == weight.tobytes()

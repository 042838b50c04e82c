"""Test the products of weights of 16-bit floats: the bits of the float32 product of what gguf dequantises, for any
number of rows.
"""

import subprocess
import sys

import gguf
import numba
import numpy as np
import pytest

from app.config import ROOT
from kernels.cpu.products.formats import FORMATS
from kernels.cpu.products.linear import LINEAR, call_linear
from kernels.cpu.products.pack import STORED, pack, pack_bias, pack_stored
from kernels.cpu.products.row_blocks import DENSE, SCALED
from kernels.cpu.simd import LANES

ROWS = (*range(1, 27), 48, 49, 67)
HALVES = dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (1, 3)) | {"Q6_K": (209,)}  # high bytes of f16; else (1,)
TYPES = list(FORMATS)


@numba.njit
def apply(code, x, w, bias, out, first, end):
    call_linear(
        code, x.shape[0], x.ctypes.data, 4 * x.shape[1], w.ctypes.data, x.shape[1],
        bias.ctypes.data, first, end, out.ctypes.data, 4 * out.shape[1],
    )  # fmt: skip


def raw(name: str, columns: int, depth: int, rng: np.random.Generator) -> np.ndarray:
    """Return random rows of a type, every byte of which can be anything but a scale's exponent: those stay finite."""
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    blocks = rng.integers(0, 256, (columns, depth // block, size), dtype=np.uint8)
    for high in HALVES.get(name, (1,)):
        blocks[..., high] &= 0x3F if name == "BF16" else 0xBB
    return blocks.reshape(columns, -1)


def dequantised(name: str, rows: np.ndarray) -> np.ndarray:
    return gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[name]).astype(np.float32)


def times(kind: str, x: np.ndarray, w: np.ndarray, bias: np.ndarray, first: int = 0, end: int = -1) -> np.ndarray:
    out = np.zeros((len(x), len(w) * LANES), np.float32)
    flat = w.reshape(len(w), -1).view(np.uint8)
    apply(LINEAR[DENSE][kind].address, x, flat, bias, out, first, len(w) if end < 0 else end)
    return out


def test_every_type_of_the_files_has_a_kernel():
    assert {kind for kinds in LINEAR.values() for kind in kinds} == {"F32", *STORED}


@pytest.mark.parametrize("columns", [48, 61])
@pytest.mark.parametrize("name", TYPES)
def test_a_product_has_the_bits_of_the_dequantised_weights(name, columns):
    rng = np.random.default_rng(columns)
    depth = 224
    rows = raw(name, columns, depth, rng)
    stored, dense = pack_stored(name, rows, depth), pack(dequantised(name, rows))
    bias = pack_bias(rng.standard_normal(columns, dtype=np.float32))
    for count in ROWS:
        x = rng.standard_normal((count, depth), dtype=np.float32)
        found, expected = times(name, x, stored, bias), times("F32", x, dense, bias)
        assert np.isfinite(expected).all() and expected.any()
        assert (found == expected).all(), count
        for block in range(len(stored)):  # alone, and not two at once
            part = times(name, x, stored, bias, block, block + 1)[:, block * LANES : (block + 1) * LANES]
            assert (part == expected[:, block * LANES : (block + 1) * LANES]).all(), (count, block)


@pytest.mark.parametrize("name", TYPES)
def test_stored_weights_take_what_their_file_takes(name):
    rows = raw(name, 32, 512, np.random.default_rng(0))
    assert pack_stored(name, rows, 512).nbytes == rows.nbytes


@pytest.mark.parametrize("name", STORED)
def test_rows_of_part_of_a_group_are_refused(name):
    with pytest.raises(ValueError, match="whole groups"):
        pack_stored(name, np.zeros((16, 64), np.uint8), STORED[name].depth + 8)


KEEPS = """
import sys, time
from kernels.cpu.products.linear import LINEAR
from kernels.cpu.products.row_blocks import SCALED
started = time.perf_counter()
address = LINEAR[SCALED][sys.argv[1]].address
print(time.perf_counter() - started, vars(LINEAR[SCALED][sys.argv[1]])["_code"].cache_hits)
"""


def test_the_compiled_kernel_is_kept_for_the_next_process():
    """Whatever compiled it first, here or in another process: no two write a closure alike."""
    assert LINEAR[SCALED]["Q4_1"].address
    done = subprocess.run([sys.executable, "-c", KEEPS, "Q4_1"], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split()[1] == "1", done.stdout

"""Test the products of weights as a file stores them: the bits of the float32 product of what gguf
dequantises, for every type and any number of rows.
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
from kernels.cpu.products.pack import pack, pack_bias, pack_stored
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
    apply(LINEAR[kind].address, x, flat, bias, out, first, len(w) if end < 0 else end)
    return out


def test_every_type_of_the_files_has_a_kernel():
    assert set(LINEAR) == {"F32", *FORMATS}


@pytest.mark.parametrize("columns", [48, 61])
@pytest.mark.parametrize("name", TYPES)
def test_a_product_has_the_bits_of_the_dequantised_weights(name, columns):
    rng = np.random.default_rng(columns)
    depth = 3 * FORMATS[name].depth if FORMATS[name].depth > 32 else 224
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
def test_stored_weights_take_no_more_than_their_file(name):
    depth = 2 * FORMATS[name].depth * 16
    rows = raw(name, 32, depth, np.random.default_rng(0))
    more = {"Q5_0": 1.55, "Q5_1": 1.51, "Q5_K": 1.58, "Q6_K": 1.31}  # bytes for what the file has in planes of bits
    assert pack_stored(name, rows, depth).nbytes <= rows.nbytes * more.get(name, 1.03)


@pytest.mark.parametrize("name", [name for name, form in FORMATS.items() if form.depth > 16])
def test_rows_of_part_of_a_group_are_refused(name):
    depth = FORMATS[name].depth + 16
    with pytest.raises(ValueError, match="whole groups"):
        pack_stored(name, np.zeros((16, 64), np.uint8), depth)


KEEPS = """
import sys, time
from kernels.cpu.products.linear import LINEAR
started = time.perf_counter()
address = LINEAR[sys.argv[1]].address
print(time.perf_counter() - started, vars(LINEAR[sys.argv[1]])["_code"].cache_hits)
"""


def test_the_compiled_kernel_is_kept_for_the_next_process():
    """Whatever compiled it first, here or in another process: no two write a closure alike."""
    assert LINEAR["Q4_1"].address
    done = subprocess.run([sys.executable, "-c", KEEPS, "Q4_1"], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split()[1] == "1", done.stdout

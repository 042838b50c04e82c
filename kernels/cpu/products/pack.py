"""Pack weights for `kernels.cpu.products.linear`: blocks of sixteen columns, lines in the order of k.

A weight (N, K) goes in, float32 or as a GGUF file's rows of blocks along K. Missing columns are zero.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from kernels.cpu.products.formats import FORMATS, Format
from kernels.cpu.products.integer_formats import INTEGER_FORMATS, IntegerFormat
from kernels.cpu.simd import LANES

STORED: dict[str, Format | IntegerFormat] = {**FORMATS, **INTEGER_FORMATS}  # by ggml's name
CACHE_LINE = 64
STRIP = 2**19  # weights that are packed at once, so that all that is made of them on the way stays in a cache
SIX_D = 104  # which f16 of a block of Q6_K is d: the last


def pack(weight: np.ndarray) -> np.ndarray:
    """(N, K) float32 -> (ceil(N / 16), K, 16) float32."""
    columns, depth = weight.shape
    whole = weight if columns % LANES == 0 else np.pad(weight, ((0, -columns % LANES), (0, 0)))
    return aligned(whole.reshape(-1, LANES, depth).transpose(0, 2, 1), np.float32)


def pack_bias(bias: np.ndarray) -> np.ndarray:
    return np.pad(bias, (0, -len(bias) % LANES))


def pack_stored(name: str, raw: np.ndarray, depth: int) -> np.ndarray:
    """Pack raw rows of a GGUF type: (N, bytes of a row) -> (ceil(N / 16), groups, bytes of a group) uint8.

    Raises ValueError unless K is a whole number of groups.
    """
    form = STORED[name]
    if depth % form.depth:
        raise ValueError(f"{name} holds whole groups of {form.depth}, not rows of {depth}")
    pack = _pack_halves if isinstance(form, Format) else partial(_pack_integers, name, form)
    columns = len(raw)
    whole = raw if columns % LANES == 0 else np.pad(raw, ((0, -columns % LANES), (0, 0)))
    blocks = whole.reshape(len(whole) // LANES, LANES, depth // form.depth, -1)
    out = aligned_empty((len(blocks), depth // form.depth, form.group_bytes), np.uint8)
    strip = max(1, STRIP // (LANES * depth))
    for first in range(0, len(out), strip):
        pack(blocks[first : first + strip], out[first : first + strip])
    return out


def _pack_integers(name: str, form: IntegerFormat, blocks: np.ndarray, out: np.ndarray) -> None:
    at = 0
    scales, q = _UNPACKERS[name](blocks)
    for values in scales:
        at = _put(out, at, values)
    quads = np.ascontiguousarray(q).view(np.uint32).reshape(*q.shape[:3], form.parts, -1)  # four lines a number
    planes = [_plane(quads >> low & ((1 << bits) - 1) * 0x01010101, bits) for low, bits in form.planes]
    _put(out, at, np.concatenate(planes, -1).transpose(0, 2, 3, 4, 1))


def _plane(quads: np.ndarray, bits: int) -> np.ndarray:
    """Join bytes of so many bits: (..., 8) uint32, four bytes each, -> (..., bits) uint32, the first lowest."""
    several = quads.reshape(*quads.shape[:-1], bits, -1)
    found = several[..., 0]
    for i in range(1, 8 // bits):
        found = found | several[..., i] << i * bits  # numpy's reduction over an inner axis takes many times as long
    return found


def _pack_halves(blocks: np.ndarray, out: np.ndarray) -> None:
    lines = blocks.view(np.uint16).transpose(0, 2, 3, 1)
    out.view(np.uint16).reshape(lines.shape)[...] = lines


Unpacked = tuple[list[np.ndarray], np.ndarray]  # a group's scales (NB, groups, ...), integers (NB, 16, groups, K)


def _unpack_bytes(blocks: np.ndarray) -> Unpacked:
    return [_scales(blocks, 0)], blocks[..., 2:] ^ 0x80


def _unpack_nibbles(blocks: np.ndarray) -> Unpacked:
    factors = (blocks.shape[-1] - 16) // 2
    return [_scales(blocks, i) for i in range(factors)], _nibbles(blocks[..., 2 * factors :])


def _unpack_fives(blocks: np.ndarray) -> Unpacked:
    factors = (blocks.shape[-1] - 20) // 2
    q = _fives(blocks[..., 2 * factors :])
    return [_scales(blocks, i) for i in range(factors)], q + np.uint8(0x80 - 16) if factors == 1 else q  # as Q8_0


def _unpack_k(blocks: np.ndarray) -> Unpacked:
    factors = np.stack(_k_factors(blocks), -1).transpose(0, 2, 3, 4, 1)  # (NB, groups, 8, 2, 16)
    return [_scales(blocks, 0), _scales(blocks, 1), factors], _k_integers(blocks)


def _unpack_six(blocks: np.ndarray) -> Unpacked:
    return [_scales(blocks, SIX_D), blocks[..., 192:208].transpose(0, 2, 3, 1)], _six_integers(blocks)


_UNPACKERS: dict[str, Callable[[np.ndarray], Unpacked]] = {
    "Q8_0": _unpack_bytes,
    "Q4_0": _unpack_nibbles,
    "Q4_1": _unpack_nibbles,
    "Q5_0": _unpack_fives,
    "Q5_1": _unpack_fives,
    "Q4_K": _unpack_k,
    "Q5_K": _unpack_k,
    "Q6_K": _unpack_six,
}


def _k_factors(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    packed = blocks[..., 4:16]
    low, mid, high = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    sc = np.concatenate([low & 63, (high & 15) | (low >> 6 << 4)], -1)
    mn = np.concatenate([mid & 63, (high >> 4) | (mid >> 6 << 4)], -1)
    return sc, mn


def _k_integers(blocks: np.ndarray) -> np.ndarray:
    q = blocks[..., -128:].reshape(*blocks.shape[:3], 4, 32)
    q = np.stack([q & 15, q >> 4], -2).reshape(*blocks.shape[:3], 8, 32)
    if blocks.shape[-1] > 144:
        fifth = blocks[..., 16:48, None] >> np.arange(8, dtype=np.uint8) & 1
        q |= fifth.swapaxes(-1, -2) << 4
    return q


def _six_integers(blocks: np.ndarray) -> np.ndarray:
    """Return q of Q6_K, with offset 32, (..., 256)."""
    shape = blocks.shape[:3]
    low = blocks[..., :128].reshape(*shape, 2, 64)
    low = np.stack([low & 15, low >> 4], -2).reshape(*shape, 256)
    high = blocks[..., 128:192].reshape(*shape, 2, 1, 32)
    high = (high >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3).reshape(*shape, 256)
    return low | high << 4


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """(..., 16) bytes -> (..., 32): the low halves first."""
    return np.concatenate([packed & 15, packed >> 4], -1)


def _fives(packed: np.ndarray) -> np.ndarray:
    """4 bytes of fifth bits and 16 of nibbles, (..., 20) -> (..., 32)."""
    return _nibbles(packed[..., 4:]) | np.unpackbits(packed[..., :4], axis=-1, bitorder="little") << 4


def _scales(blocks: np.ndarray, index: int) -> np.ndarray:
    return blocks[..., 2 * index : 2 * index + 2].copy().view(np.uint16)[..., 0].transpose(0, 2, 1)


def _put(out: np.ndarray, at: int, values: np.ndarray) -> int:
    flat = np.ascontiguousarray(values).reshape(*values.shape[:2], -1).view(np.uint8)
    end = at + flat.shape[-1]
    out[..., at:end] = flat
    return end


def aligned(array: np.ndarray, dtype: type) -> np.ndarray:
    out = aligned_empty(array.shape, dtype)
    out[...] = array
    return out


def aligned_empty(shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """Return an empty array that begins with a cache line: no line of W lies in two."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    room = np.empty(size + CACHE_LINE, np.uint8)
    first = -room.ctypes.data % CACHE_LINE
    return room[first : first + size].view(dtype).reshape(shape)

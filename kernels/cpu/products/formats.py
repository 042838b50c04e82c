"""Expand sixteen columns of a stored weight's line in registers, to the float32 of dequantising.

    BF16, F16: the number itself        Q8_0, Q5_0: d q        Q4_0: d (q - 8)
    Q4_K, Q5_K: (d sc) q - (dmin mn)    Q4_1, Q5_1: d q + m    Q6_K: (d sc) q

Every product is exact: d has 11 significant bits and q at most 8, (d sc) q of Q6_K 23. A packed weight (N, K) is blocks
of sixteen columns, each a chain of groups along K: a header with the columns' scales, then the lines.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from kernels.cpu.simd import LANES, constant, fused, load_at, read_half

PIECE = 8  # lines that a tile's innermost loop goes over
HALF_BYTES = 2 * LANES  # of sixteen f16

_F32, _I8, _I16, _I32, _I64 = ir.FloatType(), *(ir.IntType(bits) for bits in (8, 16, 32, 64))
_FLOATS, _INTS = ir.VectorType(_F32, LANES), ir.VectorType(_I32, LANES)


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of packed weight: a group has a header and `parts` parts, each with a header and `lines` lines."""

    name: str  # gguf's
    lines: int
    line_bytes: int  # half of a pair's where a byte holds two
    header_bytes: int = 0
    part_header_bytes: int = 0
    parts: int = 1

    @property
    def depth(self) -> int:
        return self.lines * self.parts

    @property
    def part_bytes(self) -> int:
        return self.part_header_bytes + self.lines * self.line_bytes

    @property
    def group_bytes(self) -> int:
        return self.header_bytes + self.parts * self.part_bytes

    def header(self, b: ir.IRBuilder, where: Any) -> tuple[Any, ...]:
        return ()

    def part_header(self, b: ir.IRBuilder, where: Any, header: tuple[Any, ...]) -> tuple[Any, ...]:
        return header

    def piece(self, b: ir.IRBuilder, where: Any, scales: tuple[Any, ...]) -> Iterator[Any]:
        raise NotImplementedError


class BFloat16(Format):
    __slots__ = ()

    def piece(self, b: ir.IRBuilder, where: Any, scales: tuple[Any, ...]) -> Iterator[Any]:
        for line in range(PIECE):
            wide = b.zext(vector(b, where, line * self.line_bytes, _I16), _INTS)
            yield b.bitcast(b.shl(wide, ints(16)), _FLOATS)


class Float16(Format):
    __slots__ = ()

    def piece(self, b: ir.IRBuilder, where: Any, scales: tuple[Any, ...]) -> Iterator[Any]:
        for line in range(PIECE):
            yield halves(b, where, line * self.line_bytes)


class SignedBytes(Format):
    """d q, a signed byte each; one f16 a column and group."""

    __slots__ = ()

    def header(self, b: ir.IRBuilder, where: Any) -> tuple[Any, ...]:
        return (halves(b, where, 0),)

    def piece(self, b: ir.IRBuilder, where: Any, scales: tuple[Any, ...]) -> Iterator[Any]:
        (d,) = scales
        for line in range(PIECE):
            yield b.fmul(d, signed(b, where, line * self.line_bytes))


class Nibbles(Format):
    """d q - 8 d, two lines a byte, the first in its low half."""

    __slots__ = ()

    def header(self, b: ir.IRBuilder, where: Any) -> tuple[Any, ...]:
        d = halves(b, where, 0)
        return d, b.fmul(d, constant(-8.0))

    def piece(self, b: ir.IRBuilder, where: Any, scales: tuple[Any, ...]) -> Iterator[Any]:
        d, m = scales
        for line in range(0, PIECE, 2):
            pair = b.zext(vector(b, where, line * self.line_bytes, _I8), _INTS)
            for q in (b.and_(pair, ints(15)), b.lshr(pair, ints(4))):
                yield fused(b, d, b.sitofp(q, _FLOATS), m)


class NibblesAndMinimum(Nibbles):
    """d q + m; two f16 a column and group."""

    __slots__ = ()

    def header(self, b: ir.IRBuilder, where: Any) -> tuple[Any, ...]:
        return halves(b, where, 0), halves(b, where, HALF_BYTES)


class BytesAndMinimum(NibblesAndMinimum):
    __slots__ = ()

    def piece(self, b: ir.IRBuilder, where: Any, scales: tuple[Any, ...]) -> Iterator[Any]:
        d, m = scales
        for line in range(PIECE):
            yield fused(b, d, signed(b, where, line * self.line_bytes), m)


class KNibbles(Nibbles):
    """(d sc) q - (dmin mn): two f16 a column and group, two six-bit factors a column and part."""

    __slots__ = ()

    def header(self, b: ir.IRBuilder, where: Any) -> tuple[Any, ...]:
        return halves(b, where, 0), b.fneg(halves(b, where, HALF_BYTES))

    def part_header(self, b: ir.IRBuilder, where: Any, header: tuple[Any, ...]) -> tuple[Any, ...]:
        d, minus = header
        return b.fmul(d, signed(b, where, 0)), b.fmul(minus, signed(b, where, LANES))


class KBytes(KNibbles):
    __slots__ = ()
    piece = BytesAndMinimum.piece


class KSignedBytes(SignedBytes):
    """(d sc) q, a signed byte each: one f16 a column and group, a signed factor a column and part."""

    __slots__ = ()

    def part_header(self, b: ir.IRBuilder, where: Any, header: tuple[Any, ...]) -> tuple[Any, ...]:
        return (b.fmul(header[0], signed(b, where, 0)),)


BF16 = BFloat16("BF16", lines=16, line_bytes=2 * LANES)
F16 = Float16("F16", lines=16, line_bytes=2 * LANES)
Q8_0 = SignedBytes("Q8_0", lines=32, line_bytes=LANES, header_bytes=HALF_BYTES)
Q4_0 = Nibbles("Q4_0", lines=32, line_bytes=LANES // 2, header_bytes=HALF_BYTES)
Q4_1 = NibblesAndMinimum("Q4_1", lines=32, line_bytes=LANES // 2, header_bytes=2 * HALF_BYTES)
Q4_K = KNibbles(
    "Q4_K", lines=32, line_bytes=LANES // 2, header_bytes=2 * HALF_BYTES, part_header_bytes=2 * LANES, parts=8
)
Q6_K = KSignedBytes("Q6_K", lines=16, line_bytes=LANES, header_bytes=HALF_BYTES, part_header_bytes=LANES, parts=16)
# Five and six bits are kept as bytes: planes of single bits would take twice the instructions a line.
Q5_1 = BytesAndMinimum("Q5_1", lines=32, line_bytes=LANES, header_bytes=2 * HALF_BYTES)
Q5_K = KBytes("Q5_K", lines=32, line_bytes=LANES, header_bytes=2 * HALF_BYTES, part_header_bytes=2 * LANES, parts=8)
FORMATS = {one.name: one for one in (BF16, F16, Q8_0, Q4_0, Q4_1, Q5_1, Q4_K, Q5_K, Q6_K)} | {"Q5_0": Q8_0}


def ints(value: int) -> ir.Constant:
    return ir.Constant(_INTS, [value] * LANES)


def vector(b: ir.IRBuilder, where: Any, offset: int, kind: ir.Type) -> Any:
    return load_at(b, where, offset, ir.VectorType(kind, LANES))


def halves(b: ir.IRBuilder, where: Any, offset: int) -> Any:
    return read_half(b, b.add(where, ir.Constant(_I64, offset)))


def signed(b: ir.IRBuilder, where: Any, offset: int) -> Any:
    return b.sitofp(signed_ints(b, where, offset), _FLOATS)


def signed_ints(b: ir.IRBuilder, where: Any, offset: int) -> Any:
    return b.sext(vector(b, where, offset, _I8), _INTS)

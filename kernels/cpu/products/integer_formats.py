"""Describe each kind of weights stored as integers: their layout in memory and the scales of their sums.

    weights: Q4_0, Q5_0, Q8_0: d (q - offset)   Q4_1, Q5_1: d q + m   Q4_K, Q5_K: (d sc) q - (dmin mn)
             Q6_K: (d sc) (q - 32)

    of rounded rows:
    Q4_0, Q5_0, Q8_0: (d d_x) sum of (q - offset) q_x       Q4_1, Q5_1: (d d_x) sum of q q_x + m s_x
    Q4_K, Q5_K: ((d sc) d_x) sum of q q_x - (dmin mn) s_x   Q6_K: (d d_x) sum of sc (q - 32) q_x

d_x, q_x and s_x are those of 32 lines of a rounded row (`row_blocks`). Sums are below 2^24, hence exact. A group is a
header with sixteen columns' scales, then parts of 32 lines: rows of 64 bytes, in which four neighbours are one column's
lines. Four bits are a plane, with the next four lines in the high halves; a fifth, or a fifth and a sixth, are a second
one. Weights are unsigned; the row's sum removes the offset, also from products of float32 rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from kernels.cpu.products.row_blocks import BLOCK, OFFSET, QUAD_BITS
from kernels.cpu.simd import BYTES, LANES, constant, fused, load_at, read_half

_I64, _FLOATS = ir.IntType(64), ir.VectorType(ir.FloatType(), LANES)
_INTS = ir.VectorType(ir.IntType(32), LANES)
HALF_BYTES = 2 * LANES  # of sixteen f16
FACTOR_BYTES = 2 * LANES  # of two bytes a column
QUAD = 4  # lines


def ints(value: int) -> ir.Constant:
    return ir.Constant(_INTS, [value] * LANES)


def halves(b: ir.IRBuilder, where: Any, offset: int) -> Any:
    return read_half(b, b.add(where, ir.Constant(_I64, offset)))


def signed(b: ir.IRBuilder, where: Any, offset: int) -> Any:
    return b.sitofp(signed_ints(b, where, offset), _FLOATS)


def signed_ints(b: ir.IRBuilder, where: Any, offset: int) -> Any:
    return b.sext(load_at(b, where, offset, ir.VectorType(ir.IntType(8), LANES)), _INTS)


@dataclass(frozen=True, slots=True)
class RowBlock:
    d: Any
    s: Any
    n: Any  # sum of its 32 integers


@dataclass(frozen=True, slots=True)
class IntegerFormat:
    """d (q - offset). A group has a header and `parts` parts of 32 lines."""

    name: str  # ggml's
    bits: int  # of a weight
    offset: int = 0
    header_bytes: int = HALF_BYTES
    parts: int = 1
    lines: int = BLOCK  # of a sum; a part has one or two

    @property
    def planes(self) -> tuple[tuple[int, int], ...]:
        """Return each plane's lowest bit and number of bits."""
        return ((0, self.bits),) if self.bits in (4, 8) else ((0, 4), (4, self.bits - 4))

    @property
    def depth(self) -> int:
        return BLOCK * self.parts

    @property
    def part_bytes(self) -> int:
        return BLOCK * LANES * self.bits // 8

    @property
    def group_bytes(self) -> int:
        return self.header_bytes + self.parts * self.part_bytes

    def quads(
        self, b: ir.IRBuilder, part: Any, first: int, lines: int, kind: ir.VectorType
    ) -> Iterator[tuple[int, Any]]:
        """Yield each four of so many lines from the first: which they are, and their bytes in columns of 32 bits."""

        def each(value: int) -> ir.Constant:
            return ir.Constant(kind, [value] * kind.count)

        for line in range(first, first + lines, QUAD):
            at, w, before = line // QUAD, each(0), 0
            for low, bits in self.planes:
                raw = load_at(b, part, before + at * bits // 8 * BYTES, kind)
                down = at * bits % 8 - low
                moved = b.lshr(raw, each(down)) if down > 0 else b.shl(raw, each(-down))
                w = b.or_(w, b.and_(moved, each(((1 << bits) - 1 << low) * 0x01010101)))
                before += BLOCK * LANES * bits // 8
            yield line, w

    def numbers(self, b: ir.IRBuilder, quad: Any) -> list[Any]:
        """Return q 2^n of a quad's four lines as float32, n as in QUAD_BITS: but for the last, no line is shifted."""
        places = [b.and_(quad, ints(255 << bits)) for bits in QUAD_BITS[:-1]]
        return [b.sitofp(q, _FLOATS) for q in (*places, b.lshr(quad, ints(24)))]

    def header(self, b: ir.IRBuilder, where: Any) -> tuple[Any, ...]:
        return ()

    def scales(self, b: ir.IRBuilder, where: Any, part: Any, header: tuple[Any, ...]) -> tuple[Any, ...]:
        return (halves(b, where, 0),)

    def terms(self, b: ir.IRBuilder, scales: tuple[Any, ...]) -> list[tuple[Any, Any]]:
        """Return for each of a part's sums, as float32: what its q are multiplied by, and what each then has added."""
        return [(scales[0], b.fmul(scales[0], constant(-self.offset)))]

    def add(self, b: ir.IRBuilder, x: RowBlock, scales: tuple[Any, ...], sums: list[Any], out: Any) -> Any:
        """`sums`: of `lines` integers each; of two, the row's share of the offset is in them."""
        whole = self.whole(b, x, scales, sums)
        return fused(b, b.fmul(scales[0], x.d), b.sitofp(whole, _FLOATS), out)

    def whole(self, b: ir.IRBuilder, x: RowBlock, scales: tuple[Any, ...], sums: list[Any]) -> Any:
        return b.sub(sums[0], b.mul(x.n, ints(self.offset))) if self.offset else sums[0]


class WithMinimum(IntegerFormat):
    __slots__ = ()

    def scales(self, b: ir.IRBuilder, where: Any, part: Any, header: tuple[Any, ...]) -> tuple[Any, ...]:
        return halves(b, where, 0), halves(b, where, HALF_BYTES)

    def terms(self, b: ir.IRBuilder, scales: tuple[Any, ...]) -> list[tuple[Any, Any]]:
        return [(scales[0], scales[1])]

    def add(self, b: ir.IRBuilder, x: RowBlock, scales: tuple[Any, ...], sums: list[Any], out: Any) -> Any:
        return fused(b, scales[1], x.s, IntegerFormat.add(self, b, x, scales, sums, out))


class KWithMinimum(WithMinimum):
    """(d sc) q - (dmin mn): two f16 a column and group, then two six-bit factors a column and part."""

    __slots__ = ()

    def header(self, b: ir.IRBuilder, where: Any) -> tuple[Any, ...]:
        return halves(b, where, 0), b.fneg(halves(b, where, HALF_BYTES))

    def scales(self, b: ir.IRBuilder, where: Any, part: Any, header: tuple[Any, ...]) -> tuple[Any, ...]:
        d, minus = header
        factors = _factors(b, where, 2 * HALF_BYTES, part)
        return b.fmul(d, signed(b, factors, 0)), b.fmul(minus, signed(b, factors, LANES))


class KSixteens(IntegerFormat):
    """(d sc) (q - offset): one f16 a column and group, two signed factors a column and part, of sixteen lines each."""

    __slots__ = ()

    def header(self, b: ir.IRBuilder, where: Any) -> tuple[Any, ...]:
        return (halves(b, where, 0),)

    def scales(self, b: ir.IRBuilder, where: Any, part: Any, header: tuple[Any, ...]) -> tuple[Any, ...]:
        factors = _factors(b, where, HALF_BYTES, part)
        return (*header, signed_ints(b, factors, 0), signed_ints(b, factors, LANES))

    def terms(self, b: ir.IRBuilder, scales: tuple[Any, ...]) -> list[tuple[Any, Any]]:
        d, *factors = scales
        return [IntegerFormat.terms(self, b, (b.fmul(d, b.sitofp(sc, _FLOATS)),))[0] for sc in factors]

    def whole(self, b: ir.IRBuilder, x: RowBlock, scales: tuple[Any, ...], sums: list[Any]) -> Any:
        return b.add(*(b.mul(sc, some) for sc, some in zip(scales[1:], sums, strict=True)))


def _factors(b: ir.IRBuilder, where: Any, after: int, part: Any) -> Any:
    return b.add(where, b.add(ir.Constant(_I64, after), b.mul(part, ir.Constant(_I64, FACTOR_BYTES))))


Q4_0 = IntegerFormat("Q4_0", bits=4, offset=8)
Q4_1 = WithMinimum("Q4_1", bits=4, header_bytes=2 * HALF_BYTES)
Q5_1 = WithMinimum("Q5_1", bits=5, header_bytes=2 * HALF_BYTES)
Q8_0 = IntegerFormat("Q8_0", bits=8, offset=128)
K_PARTS = 8  # whose factors all lie in the header: so each 64 bytes of lines of Q4_K and Q5_K are one cache line
Q4_K = KWithMinimum("Q4_K", bits=4, header_bytes=2 * HALF_BYTES + K_PARTS * FACTOR_BYTES, parts=K_PARTS)
Q5_K = KWithMinimum("Q5_K", bits=5, header_bytes=2 * HALF_BYTES + K_PARTS * FACTOR_BYTES, parts=K_PARTS)
Q6_K = KSixteens(
    "Q6_K",
    bits=6,
    offset=OFFSET,
    header_bytes=HALF_BYTES + K_PARTS * FACTOR_BYTES,
    parts=K_PARTS,
    lines=BLOCK // 2,
)
INTEGER_FORMATS = {one.name: one for one in (Q4_0, Q4_1, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K)} | {"Q5_0": Q8_0}

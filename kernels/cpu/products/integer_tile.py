"""Multiply a few rows of x, in blocks (`row_blocks`), by sixteen columns of stored integer weights.

    rounded rows: out += sum over blocks of 32 lines: (d_w d_x) (sum of q_w q_x) + m_w s_x,   s_x = d_x (sum of q_x)
    float32 rows: out += sum over blocks: d_w (sum of (q_w 2^n) (x 2^-n)) + m_w (sum of x), of Q6_K 16 lines each

The first is ggml's arithmetic, except that ggml's K types round rows by 256; its integer sums are exact. All other sums
are one chain of fused multiply-adds by rising k: a row has the same bits in any batch, on every processor.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from kernels.cpu.products.integer_formats import IntegerFormat, RowBlock
from kernels.cpu.products.integer_pairs import dot_bytes, sums_by_halves, sums_by_pairs
from kernels.cpu.products.row_blocks import BLOCK, BLOCK_BYTES, QUAD_BITS, ROUNDED, SCALED
from kernels.cpu.products.tile import by_height, integer, named, packed_product, repeat
from kernels.cpu.simd import (
    BYTES,
    LANES,
    address,
    at,
    constant,
    fused,
    index,
    load_at,
    nothing,
    op,
    prefetch,
    processor_has,
    spread,
)

# Of the largest tile of rounded rows, by a part's sums.
ROWS = {"vnni": (8, 6), "vnni, 256 bits": (4, 4), "avx2": (4, 4), "any": (4, 4)}
FLOAT_ROWS = 8 if processor_has("avx512f") else 4  # the same of float32 rows, whose chains are summed apart
AHEAD = 3072  # bytes that memory is asked for before they are needed

_F32, _I32 = ir.FloatType(), ir.IntType(32)
_FLOATS, _INTS = ir.VectorType(_F32, LANES), ir.VectorType(_I32, LANES)


def instructions() -> str:
    """Return the processor's instructions for products of bytes, one of ROWS."""
    if processor_has("avx512vnni") and processor_has("avx512bw"):
        return "vnni"
    if processor_has("avxvnni") or (processor_has("avx512vnni") and processor_has("avx512vl")):
        return "vnni, 256 bits"
    return "avx2" if processor_has("avx2") else "any"


@dataclass(frozen=True, slots=True)
class WeightPart:
    """Thirty-two lines of a block of columns, and the header of their group."""

    form: IntegerFormat
    at_group: Any
    header: tuple[Any, ...]
    number: Any  # in the group
    lines: Any
    of: list[Any]  # where each row's block is

    def scales(self, b: ir.IRBuilder) -> tuple[Any, ...]:
        return self.form.scales(b, self.at_group, self.number, self.header)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How rows in blocks of 32 numbers are multiplied; `add_parts` adds what some parts of a weight give them, with so
    many sums of each row at once.
    """

    name: str
    rows: tuple[int, int]  # of the largest tile, where a part has one sum and where it has two
    block_bytes: int
    in_pairs: int  # rows up to which two sums of each are made at once: each multiply-add of a sum waits for the last
    add_parts: Callable[[ir.IRBuilder, list[WeightPart], int, list[Any]], list[Any]]


def _most(form: IntegerFormat, by: Arithmetic) -> int:
    return by.rows[BLOCK // form.lines - 1]


def _tiles(form: IntegerFormat, by: Arithmetic) -> Any:

    @op(nothing, index, address, index, address, index, address, index)
    def tiles(b: ir.IRBuilder, rows: Any, x: Any, ldx: Any, w: Any, k: Any, out: Any, ldo: Any) -> None:
        groups = b.udiv(k, integer(form.depth))

        def tile(height: int) -> None:
            xs = [b.add(x, b.mul(ldx, integer(row))) for row in range(height)]
            outs = [b.add(out, b.mul(ldo, integer(row))) for row in range(height)]
            start = [load_at(b, where, 0, _FLOATS) for where in outs]
            sums = _add_groups(b, form, by, w, groups, xs, start)
            for where, value in zip(outs, sums, strict=True):
                b.store(value, at(b, where, _FLOATS), align=4)

        by_height(b, rows, range(1, _most(form, by) + 1), tile)

    return tiles


def _add_groups(
    b: ir.IRBuilder, form: IntegerFormat, by: Arithmetic, w: Any, groups: Any, xs: list[Any], sums: list[Any]
) -> list[Any]:
    # Of groups of one part a pair's lines are two places in memory, and reading them took a row a sixth longer.
    at_once = 2 if len(xs) <= by.in_pairs and form.parts > 1 else 1
    together = at_once if form.lines == BLOCK else 1  # else a part has two sums

    def group(group: Any, sums: list[Any]) -> list[Any]:
        at_group = b.add(w, b.mul(group, integer(form.group_bytes)))
        header = form.header(b, at_group)
        _ask(b, at_group, form.header_bytes)

        def part(number: Any) -> WeightPart:
            before = b.mul(b.add(b.mul(group, integer(form.parts)), number), integer(by.block_bytes))
            lines = _lines_of(b, form, at_group, number)
            _ask(b, lines, form.part_bytes)
            return WeightPart(form, at_group, header, number, lines, [b.add(row, before) for row in xs])

        def some(i: Any, sums: list[Any]) -> list[Any]:
            numbers = [b.add(b.mul(i, integer(together)), integer(more)) for more in range(together)]
            return by.add_parts(b, [part(number) for number in numbers], at_once, sums)

        return some(integer(0), sums) if form.parts == 1 else repeat(b, integer(form.parts // together), sums, some)

    return repeat(b, groups, sums, group)


def _lines_of(b: ir.IRBuilder, form: IntegerFormat, at_group: Any, part: Any) -> Any:
    """Return the address of a part's lines. The empty assembly keeps it in one register: LLVM would else count up an
    address for each prefetch, and move them to the stack and back.
    """
    where = b.add(at_group, b.add(integer(form.header_bytes), b.mul(part, integer(form.part_bytes))))
    return b.call(ir.InlineAsm(ir.FunctionType(where.type, [where.type]), "", "=r,0"), [where])


def _ask(b: ir.IRBuilder, where: Any, size: int) -> None:
    for offset in range(0, size, BYTES):
        prefetch(b, b.add(where, integer(AHEAD + offset)))


def _add_floats(b: ir.IRBuilder, parts: list[WeightPart], at_once: int, sums: list[Any]) -> list[Any]:

    def add(of: list[Any], offset: int, w: Any, sums: list[Any]) -> list[Any]:
        return [fused(b, _spread_at(b, x, offset, _F32), w, one) for one, x in zip(sums, of, strict=True)]

    form = parts[0].form
    chained = [(part, first) for part in parts for first in range(0, BLOCK, form.lines)]
    for some in (chained[i : i + at_once] for i in range(0, len(chained), at_once)):
        chains = [[constant(0.0)] * len(sums) for _ in some]
        walks = [form.quads(b, part.lines, first, form.lines, _INTS) for part, first in some]
        for quads in zip(*walks, strict=True):
            for i, (part, (line, quad)) in enumerate(zip((part for part, _ in some), quads, strict=True)):
                for more, w in enumerate(form.numbers(b, quad), start=line):
                    chains[i] = add(part.of, 4 * more, w, chains[i])
        for (part, first), chain in zip(some, chains, strict=True):
            factor, minimum = form.terms(b, part.scales(b))[first // form.lines]
            sums = [fused(b, factor, one, total) for one, total in zip(chain, sums, strict=True)]
            at_sum = BLOCK if form.lines == BLOCK else BLOCK + 1 + first // form.lines
            sums = add(part.of, 4 * at_sum, minimum, sums)
    return sums


def _add_integers(b: ir.IRBuilder, parts: list[WeightPart], at_once: int, sums: list[Any]) -> list[Any]:
    (part,) = parts
    form, of = part.form, part.of
    add_up = {"avx2": sums_by_pairs, "vnni, 256 bits": sums_by_halves}.get(instructions(), _sums)
    whole = []
    for i, first in enumerate(range(0, BLOCK, form.lines)):
        starts = [load_at(b, x, BLOCK + 12 + 4 * i, _I32) if form.lines < BLOCK else _I32(0) for x in of]
        whole.append(add_up(b, form, part.lines, of, first, starts))
    scales = part.scales(b)
    sums = list(sums)
    for row, where in enumerate(of):
        kinds = (_F32, _F32, _I32)
        x = RowBlock(*(_spread_at(b, where, BLOCK + 4 * i, kind) for i, kind in enumerate(kinds)))
        sums[row] = form.add(b, x, scales, [some[row] for some in whole], sums[row])
    return sums


def _sums(
    b: ir.IRBuilder, form: IntegerFormat, weights: Any, of: list[Any], first: int, starts: list[Any]
) -> list[Any]:
    """Add a part's lines `first ... first + form.lines - 1` to where each row's integer sums begin."""
    dot = dot_bytes if instructions() == "vnni" else _any
    sums = [spread(b, start) for start in starts]
    for line, w in form.quads(b, weights, first, form.lines, _INTS):
        sums = [dot(b, some, w, _spread_at(b, x, line, _I32)) for some, x in zip(sums, of, strict=True)]
    return sums


def _any(b: ir.IRBuilder, sums: Any, w: Any, x: Any) -> Any:
    for shift in range(24, -8, -8):
        up, down = ir.Constant(_INTS, [24 - shift] * LANES), ir.Constant(_INTS, [24] * LANES)
        sums = b.add(sums, b.mul(b.lshr(b.shl(w, up), down), b.ashr(b.shl(x, up), down)))
    return sums


def _spread_at(b: ir.IRBuilder, where: Any, offset: int, kind: ir.Type) -> Any:
    return spread(b, load_at(b, where, offset, kind))


ARITHMETIC = {
    SCALED: Arithmetic("scaled", (FLOAT_ROWS, FLOAT_ROWS), BLOCK_BYTES[SCALED], FLOAT_ROWS // 2, _add_floats),
    ROUNDED: Arithmetic("rounded", ROWS[instructions()], BLOCK_BYTES[ROUNDED], 0, _add_integers),
}


def expander(form: IntegerFormat) -> Any:
    """Return the kernel that writes k lines of a packed block as float32: w, k, out (k, 16)."""

    @op(nothing, address, index, address)
    def expand(b: ir.IRBuilder, w: Any, k: Any, out: Any) -> None:
        def write(g: Any, none: list[Any]) -> list[Any]:
            at_group = b.add(w, b.mul(g, integer(form.group_bytes)))
            header = form.header(b, at_group)

            def write_part(j: Any, none: list[Any]) -> list[Any]:
                part = WeightPart(form, at_group, header, j, _lines_of(b, form, at_group, j), [])
                to = b.add(out, b.mul(b.add(b.mul(g, integer(form.parts)), j), integer(BLOCK * BYTES)))
                terms = form.terms(b, part.scales(b))
                for line, quad in form.quads(b, part.lines, 0, BLOCK, _INTS):
                    factor, minimum = terms[line // form.lines]
                    for i, (q, bits) in enumerate(zip(form.numbers(b, quad), QUAD_BITS, strict=True), start=line):
                        own = b.fmul(factor, constant(2.0**-bits))
                        b.store(fused(b, own, q, minimum), at(b, b.add(to, integer(i * BYTES)), _FLOATS), align=4)
                return none

            return repeat(b, integer(form.parts), none, write_part)

        repeat(b, b.udiv(k, integer(form.depth)), [], write)

    def expanded(w: int, k: int, out: int) -> None:
        expand(w, k, out)

    return named(expanded, f"expand_{form.name}")


def product_of(form: IntegerFormat, by: Arithmetic) -> Any:
    return packed_product(f"{by.name}_product_{form.name}", _most(form, by), _tiles(form, by))

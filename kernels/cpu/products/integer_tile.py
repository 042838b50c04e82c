"""Multiply a few rows of x, rounded to int8, by sixteen columns of stored integer weights.

    out += sum over blocks of 32 lines: (d_w d_x) (sum of q_w q_x) + m_w s_x,   s_x = d_x (sum of q_x)

This is ggml's arithmetic, except that ggml's K types round rows by 256. Integer sums are exact, and blocks' sums are
one chain of fused multiply-adds by rising k: a row has the same bits in any batch, on every processor.
"""

from typing import Any

from llvmlite import ir

from kernels.cpu.products.integer_formats import IntegerFormat, RowBlock
from kernels.cpu.products.integer_pairs import declared, sums_by_pairs
from kernels.cpu.products.round_rows import BLOCK, BLOCK_BYTES
from kernels.cpu.products.tile import by_height, integer, packed_product, repeat
from kernels.cpu.simd import BYTES, LANES, address, at, index, load_at, nothing, op, prefetch, processor_has, spread

ROWS = {"vnni": 8, "avx2": 4, "any": 4}  # of the largest tile: with 32 registers eight sums fit twice
AHEAD = 3072  # bytes that memory is asked for before they are needed

_F32, _I32 = ir.FloatType(), ir.IntType(32)
_FLOATS, _INTS = ir.VectorType(_F32, LANES), ir.VectorType(_I32, LANES)


def instructions() -> str:
    """Return the processor's instructions for products of bytes: vnni, avx2, or any."""
    if processor_has("avx512vnni") and processor_has("avx512bw"):
        return "vnni"
    return "avx2" if processor_has("avx2") else "any"


def _tiles(form: IntegerFormat) -> Any:

    @op(nothing, index, address, index, address, index, address, index)
    def tiles(b: ir.IRBuilder, rows: Any, x: Any, ldx: Any, w: Any, k: Any, out: Any, ldo: Any) -> None:
        groups = b.udiv(k, integer(form.depth))

        def tile(height: int) -> None:
            xs = [b.add(x, b.mul(ldx, integer(row))) for row in range(height)]
            outs = [b.add(out, b.mul(ldo, integer(row))) for row in range(height)]
            sums = _add_groups(b, form, w, groups, xs, [load_at(b, where, 0, _FLOATS) for where in outs])
            for where, value in zip(outs, sums, strict=True):
                b.store(value, at(b, where, _FLOATS), align=4)

        by_height(b, rows, range(1, ROWS[instructions()] + 1), tile)

    return tiles


def _add_groups(b: ir.IRBuilder, form: IntegerFormat, w: Any, groups: Any, xs: list[Any], sums: list[Any]) -> list[Any]:

    def group(g: Any, sums: list[Any]) -> list[Any]:
        at_group = b.add(w, b.mul(g, integer(form.group_bytes)))
        header = form.header(b, at_group)

        def part(j: Any, sums: list[Any]) -> list[Any]:
            before = b.mul(b.add(b.mul(g, integer(form.parts)), j), integer(BLOCK_BYTES))
            return _add_part(b, form, at_group, header, j, [b.add(row, before) for row in xs], sums)

        return part(integer(0), sums) if form.parts == 1 else repeat(b, integer(form.parts), sums, part)

    return repeat(b, groups, sums, group)


def _add_part(
    b: ir.IRBuilder,
    form: IntegerFormat,
    at_group: Any,
    header: tuple[Any, ...],
    part: Any,
    of: list[Any],
    sums: list[Any],
) -> list[Any]:
    share = form.group_bytes // form.parts
    for offset in range(0, share, BYTES):
        prefetch(b, b.add(b.add(at_group, b.mul(part, integer(share))), integer(AHEAD + offset)))
    at_lines = b.add(at_group, b.add(integer(form.header_bytes), b.mul(part, integer(form.part_bytes))))
    add_up = sums_by_pairs if instructions() == "avx2" else _sums
    whole = [add_up(b, form, at_lines, of, first) for first in range(0, BLOCK, form.lines)]
    scales = form.scales(b, at_group, part, header)
    for row, where in enumerate(of):
        kinds = (_F32, _F32, _I32, _I32)
        x = RowBlock(*(_spread_at(b, where, BLOCK + 4 * i, kind) for i, kind in enumerate(kinds)))
        sums[row] = form.add(b, x, scales, [some[row] for some in whole], sums[row])
    return sums


def _sums(b: ir.IRBuilder, form: IntegerFormat, weights: Any, of: list[Any], first: int) -> list[Any]:
    """Return each row's integer sums of a part's lines `first ... first + form.lines - 1`."""
    dot = _vnni if instructions() == "vnni" else _any
    sums = [ir.Constant(_INTS, [0] * LANES)] * len(of)
    for line, w in form.quads(b, weights, first, _INTS):
        sums = [dot(b, some, w, _spread_at(b, x, line, _I32)) for some, x in zip(sums, of, strict=True)]
    return sums


def _vnni(b: ir.IRBuilder, sums: Any, w: Any, x: Any) -> Any:
    """Add to each of sixteen sums four products of unsigned with signed bytes: one instruction."""
    kind = ir.FunctionType(_INTS, [_INTS] * 3)
    return b.call(declared(b, "llvm.x86.avx512.vpdpbusd.512", kind), [sums, w, x])


def _any(b: ir.IRBuilder, sums: Any, w: Any, x: Any) -> Any:
    for shift in range(24, -8, -8):
        up, down = ir.Constant(_INTS, [24 - shift] * LANES), ir.Constant(_INTS, [24] * LANES)
        sums = b.add(sums, b.mul(b.lshr(b.shl(w, up), down), b.ashr(b.shl(x, up), down)))
    return sums


def _spread_at(b: ir.IRBuilder, where: Any, offset: int, kind: ir.Type) -> Any:
    return spread(b, load_at(b, where, offset, kind))


def product_of(form: IntegerFormat) -> Any:
    return packed_product(f"integer_product_{form.name}", ROWS[instructions()], _tiles(form))

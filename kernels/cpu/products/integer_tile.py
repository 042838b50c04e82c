"""Multiply a few rows of x, rounded to int8, by sixteen columns of stored integer weights.

    out += sum over blocks of 32 lines: (d_w d_x) (sum of q_w q_x) + m_w s_x,   s_x = d_x (sum of q_x)

This is ggml's arithmetic, except that ggml's K types round rows by 256. Integer sums are exact, and blocks' sums are
one chain of fused multiply-adds by rising k: a row has the same bits in any batch, on every processor.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from kernels.cpu.products.integer_formats import IntegerFormat, RowBlock
from kernels.cpu.products.round_rows import BLOCK, BLOCK_BYTES
from kernels.cpu.products.tile import by_height, integer, packed_product, repeat
from kernels.cpu.simd import (
    BYTES,
    LANES,
    address,
    at,
    index,
    nothing,
    op,
    prefetch,
    processor_has,
    read,
    spread,
)

ROWS = 8  # of the largest tile: with 32 registers its sums fit twice
AHEAD = 3072  # bytes that memory is asked for before they are needed

_F32, _I8, _I16, _I32 = ir.FloatType(), *(ir.IntType(bits) for bits in (8, 16, 32))
_FLOATS, _INTS, _QUADS = ir.VectorType(_F32, LANES), ir.VectorType(_I32, LANES), ir.VectorType(_I8, 4 * LANES)
_HALF = ir.VectorType(_I8, 2 * LANES)  # what one register of AVX2 holds


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
            sums = _add_groups(b, form, w, groups, xs, [read(b, where) for where in outs])
            for where, value in zip(outs, sums, strict=True):
                b.store(value, at(b, where, _FLOATS), align=4)

        by_height(b, rows, range(1, ROWS + 1), tile)

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
    whole = [_integers(b, form, at_lines, of, first) for first in range(0, BLOCK, form.lines)]
    scales = form.scales(b, at_group, part, header)
    for row, where in enumerate(of):
        kinds = (_F32, _F32, _I32, _I32)
        x = RowBlock(*(_spread_at(b, where, BLOCK + 4 * i, kind) for i, kind in enumerate(kinds)))
        sums[row] = form.add(b, x, scales, [some[row] for some in whole], sums[row])
    return sums


def _integers(b: ir.IRBuilder, form: IntegerFormat, weights: Any, of: list[Any], first: int) -> list[Any]:
    """Return each row's integer sums of a part's lines `first ... first + form.lines - 1`."""
    dot = _DOTS[instructions()]
    sums = [ir.Constant(_INTS, [0] * LANES)] * len(of)
    lines = 8 if form.is_nibbles else 4
    for line in range(first, first + form.lines, lines):
        raw = _at(b, weights, line // lines * BYTES, _INTS)
        for half in range(lines // 4):
            part = raw
            if form.is_nibbles:
                shifted = b.lshr(raw, ir.Constant(_INTS, [4] * LANES)) if half else raw
                part = b.and_(shifted, ir.Constant(_INTS, [0x0F0F0F0F] * LANES))
            for row, where in enumerate(of):
                sums[row] = dot(b, form, sums[row], part, _spread_at(b, where, line + 4 * half, _I32))
    return sums


def _vnni(b: ir.IRBuilder, form: IntegerFormat, sums: Any, w: Any, x: Any) -> Any:
    """Add to each of sixteen sums four products of unsigned with signed bytes: one instruction."""
    kind = ir.FunctionType(_INTS, [_INTS] * 3)
    return b.call(_declared(b, "llvm.x86.avx512.vpdpbusd.512", kind), [sums, w, x])


def _avx2(b: ir.IRBuilder, form: IntegerFormat, sums: Any, w: Any, x: Any) -> Any:
    """Compute `_vnni` by sums of pairs in 16 bits, which overflow above 127: bytes go in two parts, w & 127 and w &
    128.
    """
    if not form.is_eight_bits:
        return b.add(sums, _pairs_of(b, w, x))
    low = b.and_(w, ir.Constant(_INTS, [0x7F7F7F7F] * LANES))
    high = b.and_(w, ir.Constant(_INTS, [-0x7F7F7F80] * LANES))
    return b.add(b.add(sums, _pairs_of(b, low, x)), _pairs_of(b, high, x))


def _pairs_of(b: ir.IRBuilder, w: Any, x: Any) -> Any:
    words, ints = ir.VectorType(_I16, LANES), ir.VectorType(_I32, LANES // 2)
    multiply = _declared(b, "llvm.x86.avx2.pmadd.ub.sw", ir.FunctionType(words, [_HALF, _HALF]))
    join = _declared(b, "llvm.x86.avx2.pmadd.wd", ir.FunctionType(ints, [words, words]))
    halves = []
    for first in (0, 2 * LANES):
        places = ir.Constant(ir.VectorType(_I32, 2 * LANES), list(range(first, first + 2 * LANES)))
        sides = [b.bitcast(side, _QUADS) for side in (w, x)]
        parts = [b.shuffle_vector(side, ir.Constant(_QUADS, ir.Undefined), places) for side in sides]
        halves.append(b.call(join, [b.call(multiply, parts), ir.Constant(words, [1] * LANES)]))
    return b.shuffle_vector(halves[0], halves[1], ir.Constant(_INTS, list(range(LANES))))


def _any(b: ir.IRBuilder, form: IntegerFormat, sums: Any, w: Any, x: Any) -> Any:
    for shift in range(24, -8, -8):
        up, down = ir.Constant(_INTS, [24 - shift] * LANES), ir.Constant(_INTS, [24] * LANES)
        sums = b.add(sums, b.mul(b.lshr(b.shl(w, up), down), b.ashr(b.shl(x, up), down)))
    return sums


_DOTS: dict[str, Callable[..., Any]] = {"vnni": _vnni, "avx2": _avx2, "any": _any}


def _declared(b: ir.IRBuilder, name: str, kind: ir.FunctionType) -> Any:
    known = b.module.globals.get(name)
    return known if known is not None else ir.Function(b.module, kind, name)


def _at(b: ir.IRBuilder, where: Any, offset: int, kind: ir.Type) -> Any:
    return b.load(at(b, b.add(where, integer(offset)), kind), align=1)


def _spread_at(b: ir.IRBuilder, where: Any, offset: int, kind: ir.Type) -> Any:
    if kind is _F32:
        return spread(b, _at(b, where, offset, kind))
    none = ir.Constant(_INTS, ir.Undefined)
    first = b.insert_element(none, _at(b, where, offset, kind), ir.Constant(_I32, 0))
    return b.shuffle_vector(first, none, ir.Constant(_INTS, [0] * LANES))


def product_of(form: IntegerFormat) -> Any:
    return packed_product(f"integer_product_{form.name}", ROWS, _tiles(form))

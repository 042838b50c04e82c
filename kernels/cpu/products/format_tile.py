"""Multiply a few rows of x by sixteen columns of W that are kept as a file stores them.

    out += x W

The same chain of fused multiply-adds over k = 0, 1, ... as `kernels.cpu.products.tile`'s, over the same
float32, so the same bits; only what is read from memory is smaller. Many rows read W as float32
from a chunk that `expand` made once.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from kernels.cpu.products.formats import PIECE, Format
from kernels.cpu.products.tile import ROWS
from kernels.cpu.simd import (
    BYTES,
    address,
    at,
    constant,
    fused,
    index,
    nothing,
    op,
    prefetch,
    processor_has,
    read,
    spread,
)
from kernels.jit import kernel

AHEAD = 2048  # bytes that memory is asked for before they are needed
LINE = 64  # bytes that memory gives at once
_I64, _F32 = ir.IntType(64), ir.FloatType()
_LANES = constant(0.0).type
Body = Callable[[Any, list[Any]], list[Any]]


def _tile(form: Format, rows: int, blocks: int = 1) -> Any:
    """Return the tile of `rows` rows by `blocks` blocks of sixteen columns."""

    @op(nothing, address, index, address, index, address, index)
    def product(b: ir.IRBuilder, x: Any, ldx: Any, w: Any, k: Any, out: Any, ldo: Any) -> Any:
        """Add x (rows, k) at stride ldx times w (blocks, k, 16) to out (rows, 16 blocks) at stride ldo; bytes."""
        groups = b.udiv(k, _int(form.depth))
        size = b.mul(groups, _int(form.group_bytes))
        ws = [b.add(w, b.mul(size, _int(block))) for block in range(blocks)]
        xs = [b.add(x, b.mul(ldx, _int(row))) for row in range(rows)]
        outs = [b.add(b.add(out, b.mul(ldo, _int(row))), _int(BYTES * i)) for row in range(rows) for i in range(blocks)]

        def add(line: Any, columns: list[Any], sums: list[Any]) -> list[Any]:
            for row, of in enumerate(xs):
                value = spread(b, b.load(at(b, b.add(of, b.mul(line, _int(4))), _F32), align=4))
                for i, some in enumerate(columns, start=row * blocks):
                    sums[i] = fused(b, value, some, sums[i])
            return sums

        sums = _walk(b, form, ws, groups, [read(b, where) for where in outs], add)
        for where, value in zip(outs, sums, strict=True):
            b.store(value, at(b, where, _LANES), align=4)

    return product


def _expand(form: Format) -> Any:
    """Return the op that writes k lines of a block as float32."""

    @op(nothing, address, index, address)
    def expand(b: ir.IRBuilder, w: Any, k: Any, out: Any) -> Any:
        """Write w (k, 16) as float32 to out (k, 16)."""

        def write(line: Any, columns: list[Any], nothing_yet: list[Any]) -> list[Any]:
            b.store(columns[0], at(b, b.add(out, b.mul(line, _int(BYTES))), _LANES), align=4)
            return nothing_yet

        _walk(b, form, [w], b.udiv(k, _int(form.depth)), [], write)

    return expand


def _walk(
    b: ir.IRBuilder,
    form: Format,
    ws: list[Any],
    groups: Any,
    sums: list[Any],
    visit: Callable[[Any, list[Any], list[Any]], list[Any]],
) -> list[Any]:
    """Emit `for each line: sums = visit(line, its columns in every block, sums)`; return the last sums."""

    def group(i: Any, sums: list[Any]) -> list[Any]:
        at_group = [b.add(w, b.mul(i, _int(form.group_bytes))) for w in ws]
        headers = [form.header(b, where) for where in at_group]
        _ask(b, at_group, form.header_bytes)

        def part(j: Any, sums: list[Any]) -> list[Any]:
            offset = b.add(_int(form.header_bytes), b.mul(j, _int(form.part_bytes)))
            at_part = [b.add(where, offset) for where in at_group]
            scales = [form.part_header(b, where, header) for where, header in zip(at_part, headers, strict=True)]
            first = b.add(b.mul(i, _int(form.depth)), b.mul(j, _int(form.lines)))

            def piece(n: Any, sums: list[Any]) -> list[Any]:
                offset = b.add(_int(form.part_header_bytes), b.mul(n, _int(PIECE * form.line_bytes)))
                at_piece = [b.add(where, offset) for where in at_part]
                _ask(b, at_piece, PIECE * form.line_bytes)
                readers = [form.piece(b, where, own) for where, own in zip(at_piece, scales, strict=True)]
                line = b.add(first, b.mul(n, _int(PIECE)))
                for step, columns in enumerate(zip(*readers, strict=True)):
                    sums = visit(b.add(line, _int(step)), list(columns), sums)
                return sums

            return repeat(b, _int(form.lines // PIECE), sums, piece)

        return repeat(b, _int(form.parts), sums, part)

    return repeat(b, groups, sums, group)


def _ask(b: ir.IRBuilder, places: list[Any], size: int) -> None:
    """Ask memory for what lies AHEAD of `size` bytes at each place."""
    for where in places:
        for offset in range(0, size, LINE):
            prefetch(b, b.add(where, _int(AHEAD + offset)))


def repeat(b: ir.IRBuilder, count: Any, sums: list[Any], body: Body) -> list[Any]:
    """Emit `for i in range(count): sums = body(i, sums)`; return the last sums."""
    before, head, inside, after = b.block, *(b.append_basic_block(name) for name in ("head", "body", "after"))
    b.branch(head)
    b.position_at_end(head)
    i = b.phi(_I64)
    i.add_incoming(_int(0), before)
    carried = [b.phi(_LANES) for _ in sums]
    for phi, value in zip(carried, sums, strict=True):
        phi.add_incoming(value, before)
    b.cbranch(b.icmp_signed("<", i, count), inside, after)
    b.position_at_end(inside)
    grown = body(i, list(carried))
    i.add_incoming(b.add(i, _int(1)), b.block)
    for phi, value in zip(carried, grown, strict=True):
        phi.add_incoming(value, b.block)
    b.branch(head)
    b.position_at_end(after)
    return carried


def _int(value: int) -> ir.Constant:
    return ir.Constant(_I64, value)


def product_of(form: Format) -> Any:
    """Return the product of any number of rows with one block of W, made of tiles of even heights.

    Takes rows, x, ldx, w, k, out, ldo: addresses, and strides in bytes.
    """
    most = tallest()
    one, two, three, four, five, six = (_tile(form, rows) for rows in range(1, ROWS + 1))
    if most == ROWS:
        seven = eight = ten = twelve = six  # never called
    else:
        seven, eight, ten, twelve = (_tile(form, rows) for rows in (7, 8, 10, 12))

    def product(rows: int, x: int, ldx: int, w: int, k: int, out: int, ldo: int) -> None:
        while rows > 0:
            tiles = (rows + most - 1) // most
            n = (rows + tiles - 1) // tiles
            if n == 9 or n == 11:
                n = (n + 1) // 2  # heights that are seldom asked for have no tile
            if n == 12:
                twelve(x, ldx, w, k, out, ldo)
            elif n == 10:
                ten(x, ldx, w, k, out, ldo)
            elif n == 8:
                eight(x, ldx, w, k, out, ldo)
            elif n == 7:
                seven(x, ldx, w, k, out, ldo)
            elif n == 6:
                six(x, ldx, w, k, out, ldo)
            elif n == 5:
                five(x, ldx, w, k, out, ldo)
            elif n == 4:
                four(x, ldx, w, k, out, ldo)
            elif n == 3:
                three(x, ldx, w, k, out, ldo)
            elif n == 2:
                two(x, ldx, w, k, out, ldo)
            else:
                one(x, ldx, w, k, out, ldo)
            x += n * ldx
            out += n * ldo
            rows -= n

    return named(product, f"product_{form.name}")


def tallest() -> int:
    """Return the rows of the largest tile: 32 registers of sixteen lanes hold twelve rows' sums and more."""
    return 12 if processor_has("avx512f") else ROWS


def pair_of(form: Format) -> Any:
    """Return the product of one row with two blocks of W that lie one behind the other."""
    return _tile(form, 1, blocks=2)


def expander(form: Format) -> Any:
    """Return the kernel that writes k lines of a block as float32: w, k, out (k, 16)."""
    each = _expand(form)

    def expand(w: int, k: int, out: int) -> None:
        each(w, k, out)

    return named(expand, f"expand_{form.name}")


def named(function: Any, name: str) -> Any:
    """Compile a function under a name that no other kernel has."""
    function.__name__ = function.__qualname__ = name  # as in `kernels.cpu.products.tile`
    return kernel(function)

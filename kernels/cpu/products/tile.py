"""Multiply a few rows of x by sixteen columns of W: the product under all others.

    out = x W (+ out)

W is float32, or of 16-bit floats (`formats`) and expanded in registers. Each output is one chain of fused multiply-adds
over k = 0, 1, ...: the same bits at all heights. Six rows by sixteen columns take twelve of AVX2's sixteen registers;
one or two rows take two blocks for enough independent chains.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from llvmlite import ir

from kernels.cpu.products.formats import LINE_BYTES, PIECE, Format
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
    read_half,
    spread,
)
from kernels.jit import kernel

ROWS = 12 if processor_has("avx512f") else 6  # of the largest tile: a sum takes two of AVX2's sixteen registers
HEIGHTS = tuple(rows for rows in (*range(1, 9), 10, 12) if rows <= ROWS)
PAIR_ROWS = 2  # of the largest tile over two blocks of float32; three would need more registers than there are
AHEAD = 2048  # bytes that memory is asked for before they are needed
LINE = 64  # bytes that memory gives at once
UNROLL = 4  # lines of float32
_I64, _F32 = ir.IntType(64), ir.FloatType()
_LANES = constant(0.0).type
Read = Callable[[ir.IRBuilder, Any], Any]  # a line's address -> sixteen float32
Visit = Callable[[Any, list[Any], list[Any]], list[Any]]  # a line's number, its columns in each block, sums -> sums
Walk = Callable[[ir.IRBuilder, list[Any], list[Any], Visit], list[Any]]  # blocks' addresses, sums, visit -> sums


@dataclass(frozen=True, slots=True)
class TileRows:
    """The addresses and strides, in bytes, of x (rows, k) and out (rows, 16 blocks)."""

    x: Any
    ldx: Any
    out: Any
    ldo: Any

    def multiply(self, b: ir.IRBuilder, rows: int, ws: list[Any], walk: Walk, is_fresh: bool = False) -> None:
        """Emit out = x W + out for the blocks at `ws`, or out = x W if it is fresh."""
        xs = [b.add(self.x, b.mul(self.ldx, integer(row))) for row in range(rows)]
        lines = [b.add(self.out, b.mul(self.ldo, integer(row))) for row in range(rows)]
        outs = [b.add(line, integer(BYTES * block)) for line in lines for block in range(len(ws))]

        def add(line: Any, columns: list[Any], sums: list[Any]) -> list[Any]:
            sums = list(sums)
            for row, of in enumerate(xs):
                value = spread(b, b.load(at(b, b.add(of, b.mul(line, integer(4))), _F32), align=4))
                for i, some in enumerate(columns, start=row * len(ws)):
                    sums[i] = fused(b, value, some, sums[i])
            return sums

        start = [constant(0.0) if is_fresh else read(b, where) for where in outs]
        for where, value in zip(outs, walk(b, ws, start, add), strict=True):
            b.store(value, at(b, where, _LANES), align=4)


def _over_lines(
    heights: Iterable[int], blocks: int = 1, is_fresh: bool = False, every: int = 0, reads: Read = read
) -> Any:
    """Return the tiles of these heights over lines that `reads` reads as float32.

    They prefetch 64 bytes from `ask` each `every` lines (0: never).
    """

    @op(nothing, index, address, index, address, index, index, address, index, address)
    def tiles(
        b: ir.IRBuilder, rows: Any, x: Any, ldx: Any, w: Any, ldw: Any, k: Any, out: Any, ldo: Any, ask: Any
    ) -> None:

        def visit_line(ws: list[Any], visit: Visit, step: int, line: Any, sums: list[Any]) -> list[Any]:
            if every and step % every == 0:
                prefetch(b, b.add(ask, b.mul(line, integer(LINE // every))))
            return visit(line, [reads(b, b.add(w, b.mul(line, ldw))) for w in ws], sums)

        def walk(b: ir.IRBuilder, ws: list[Any], sums: list[Any], visit: Visit) -> list[Any]:
            def unrolled(i: Any, sums: list[Any]) -> list[Any]:
                first = b.mul(i, integer(UNROLL))
                for step in range(UNROLL):
                    sums = visit_line(ws, visit, step, b.add(first, integer(step)), sums)
                return sums

            whole = b.udiv(k, integer(UNROLL))
            done = b.mul(whole, integer(UNROLL))
            sums = repeat(b, whole, sums, unrolled)
            return repeat(b, b.sub(k, done), sums, lambda i, sums: visit_line(ws, visit, 0, b.add(done, i), sums))

        ws = [b.add(w, b.mul(b.mul(k, ldw), integer(block))) for block in range(blocks)]
        tile = TileRows(x, ldx, out, ldo)
        by_height(b, rows, heights, lambda height: tile.multiply(b, height, ws, walk, is_fresh))

    return tiles


def _over_packed(form: Format, heights: Iterable[int], blocks: int = 1) -> Any:

    @op(nothing, index, address, index, address, index, address, index)
    def tiles(b: ir.IRBuilder, rows: Any, x: Any, ldx: Any, w: Any, k: Any, out: Any, ldo: Any) -> None:
        size = b.mul(k, integer(LINE_BYTES))
        ws = [b.add(w, b.mul(size, integer(block))) for block in range(blocks)]
        tile = TileRows(x, ldx, out, ldo)
        by_height(b, rows, heights, lambda height: tile.multiply(b, height, ws, partial(_walk_lines, form, k)))

    return tiles


def _walk_lines(form: Format, k: Any, b: ir.IRBuilder, ws: list[Any], sums: list[Any], visit: Visit) -> list[Any]:
    def piece(i: Any, sums: list[Any]) -> list[Any]:
        at_piece = [b.add(w, b.mul(i, integer(PIECE * LINE_BYTES))) for w in ws]
        for where in at_piece:
            for offset in range(0, PIECE * LINE_BYTES, LINE):
                prefetch(b, b.add(where, integer(AHEAD + offset)))
        for step in range(PIECE):
            columns = [form.read(b, b.add(where, integer(step * LINE_BYTES))) for where in at_piece]
            sums = visit(b.add(b.mul(i, integer(PIECE)), integer(step)), columns, sums)
        return sums

    return repeat(b, b.udiv(k, integer(PIECE)), sums, piece)


def repeat(b: ir.IRBuilder, count: Any, sums: list[Any], body: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
    before, head, inside, after = b.block, *(b.append_basic_block(name) for name in ("head", "body", "after"))
    b.branch(head)
    b.position_at_end(head)
    i = b.phi(_I64)
    i.add_incoming(integer(0), before)
    carried = [b.phi(_LANES) for _ in sums]
    for phi, value in zip(carried, sums, strict=True):
        phi.add_incoming(value, before)
    b.cbranch(b.icmp_signed("<", i, count), inside, after)
    b.position_at_end(inside)
    grown = body(i, list(carried))
    i.add_incoming(b.add(i, integer(1)), b.block)
    for phi, value in zip(carried, grown, strict=True):
        phi.add_incoming(value, b.block)
    b.branch(head)
    b.position_at_end(after)
    return carried


def by_height(b: ir.IRBuilder, rows: Any, heights: Iterable[int], emit: Callable[[int], None]) -> None:
    after = b.append_basic_block("after_tile")
    choice = b.switch(rows, after)
    for height in heights:
        block = b.append_basic_block(f"tile_{height}")
        choice.add_case(integer(height), block)
        b.position_at_end(block)
        emit(height)
        b.branch(after)
    b.position_at_end(after)


def integer(value: int) -> ir.Constant:
    return ir.Constant(_I64, value)


@kernel
def height(rows: int, most: int) -> int:
    """Return the rows of the next tile, at most `most`: even parts; nine and eleven have no tile."""
    tiles = (rows + most - 1) // most
    even = (rows + tiles - 1) // tiles
    return (even + 1) // 2 if even == 9 or even == 11 else even


def _product(name: str, is_fresh: bool = False, every: int = 0, reads: Read = read) -> Any:
    tiles = _over_lines(HEIGHTS, is_fresh=is_fresh, every=every, reads=reads)

    def product(rows: int, x: int, ldx: int, w: int, ldw: int, k: int, out: int, ldo: int, ask: int = 0) -> None:
        while rows > 0:
            n = height(rows, ROWS)
            tiles(n, x, ldx, w, ldw, k, out, ldo, ask)
            x += n * ldx
            out += n * ldo
            rows -= n

    return named(product, name)


def packed_product(name: str, most: int, tiles: Any) -> Any:
    """Multiply any number of rows by one packed block of W, in tiles of up to `most` rows.

    It takes rows, x, ldx, w, k, out, ldo: addresses, and strides in bytes.
    """

    def product(rows: int, x: int, ldx: int, w: int, k: int, out: int, ldo: int) -> None:
        while rows > 0:
            n = height(rows, most)
            tiles(n, x, ldx, w, k, out, ldo)
            x += n * ldx
            out += n * ldo
            rows -= n

    return named(product, name)


def named(function: Any, name: str) -> Any:
    """Compile a function under a name of its own.

    numba numbers functions of one name and type anew in each process, and might link another one.
    """
    function.__name__ = function.__qualname__ = name
    return kernel(function)


def product_of(form: Format) -> Any:
    return packed_product(f"product_{form.name}", ROWS, _over_packed(form, HEIGHTS))


def pair_of(form: Format) -> Any:
    """The first argument is one row; blocks are adjacent."""
    return _over_packed(form, (1,), blocks=2)


def expander(form: Format) -> Any:
    """Return the kernel that writes k lines of a packed block as float32: w, k, out (k, 16)."""

    @op(nothing, address, index, address)
    def expand(b: ir.IRBuilder, w: Any, k: Any, out: Any) -> None:
        def write(line: Any, columns: list[Any], nothing_yet: list[Any]) -> list[Any]:
            b.store(columns[0], at(b, b.add(out, b.mul(line, integer(BYTES))), _LANES), align=4)
            return nothing_yet

        _walk_lines(form, k, b, [w], [], write)

    def expanded(w: int, k: int, out: int) -> None:
        expand(w, k, out)

    return named(expanded, f"expand_{form.name}")


# Over float32; addresses and strides in bytes: x (rows, k), w (k, 16), out (rows, 16).
product = _product("product", is_fresh=True)  # out = x W
product_more = _product("product_more")  # out += x W

# The same over weights that come from memory: out += x W, and k lines from `ask` on are asked for, or half as many.
stream = _product("stream", every=1)
stream_fresh = _product("stream_fresh", is_fresh=True, every=1)  # out = x W
stream_half = _product("stream_half", every=2)

# Over lines of float16: out = x W, without prefetches and with them.
product_f16 = _product("product_f16", is_fresh=True, reads=read_half)
stream_f16 = _product("stream_f16", is_fresh=True, every=2, reads=read_half)

# One row or two, w (2, k, 16), out (rows, 32): two streams, which the processor follows by itself.
stream_pair = _over_lines(range(1, PAIR_ROWS + 1), blocks=2)

"""Multiply rows of x by sixteen columns of W whose lines lie in pages.

    out = x W

A page has `lines` lines of sixteen columns, float32 or float16, one behind another. Sums are those of `tile`: one
chain of fused multiply-adds over all lines, in registers from the first page to the last.
"""

from typing import Any

from llvmlite import ir

from kernels.cpu.products.tile import (
    HEIGHTS,
    LINE,
    ROWS,
    UNROLL,
    Read,
    TileRows,
    Visit,
    by_height,
    height,
    integer,
    named,
    repeat,
)
from kernels.cpu.simd import BYTES, address, at, index, nothing, op, prefetch, read, read_half

_I64 = ir.IntType(64)
PAGES_AHEAD = 4  # a page's lines are prefetched while the fourth page before it is multiplied


def _tiles(reads: Read, line_bytes: int) -> Any:

    @op(nothing, index, address, index, address, address, index, index, index, address, index)
    def tiles(
        b: ir.IRBuilder, rows: Any, x: Any, ldx: Any, numbers: Any, w: Any, page_bytes: Any, lines: Any, k: Any,
        out: Any, ldo: Any,
    ) -> None:  # fmt: skip
        def page(i: Any) -> Any:
            number = b.load(at(b, b.add(numbers, b.mul(i, integer(8))), _I64), align=8)
            return b.add(w, b.mul(number, page_bytes))

        def walk(b: ir.IRBuilder, ws: list[Any], sums: list[Any], visit: Visit) -> list[Any]:
            whole = b.udiv(k, lines)
            rest = b.sub(k, b.mul(whole, lines))
            last = b.sub(b.add(whole, b.zext(b.icmp_signed(">", rest, integer(0)), _I64)), integer(1))

            def over(i: Any, sums: list[Any]) -> list[Any]:
                here, line = page(i), b.mul(i, lines)
                after = b.add(i, integer(PAGES_AHEAD))
                ask = page(b.select(b.icmp_signed("<", after, last), after, last))

                def unrolled(j: Any, sums: list[Any]) -> list[Any]:
                    first = b.mul(j, integer(UNROLL))
                    for step in range(UNROLL):
                        own = b.add(first, integer(step))
                        if step % (LINE // line_bytes) == 0:
                            prefetch(b, b.add(ask, b.mul(own, integer(line_bytes))))
                        sums = visit(b.add(line, own), [reads(b, b.add(here, b.mul(own, integer(line_bytes))))], sums)
                    return sums

                return repeat(b, b.udiv(lines, integer(UNROLL)), sums, unrolled)

            sums = repeat(b, whole, sums, over)
            here, line = page(last), b.mul(whole, lines)

            def one(j: Any, sums: list[Any]) -> list[Any]:
                return visit(b.add(line, j), [reads(b, b.add(here, b.mul(j, integer(line_bytes))))], sums)

            return repeat(b, rest, sums, one)

        tile = TileRows(x, ldx, out, ldo)
        by_height(b, rows, HEIGHTS, lambda height: tile.multiply(b, height, [w], walk, True))

    return tiles


def _product(name: str, tiles: Any) -> Any:
    def paged(
        rows: int, x: int, ldx: int, numbers: int, w: int, page_bytes: int, lines: int, k: int, out: int, ldo: int
    ) -> None:
        """`numbers`: address of the pages' numbers, int64; `w`: of page 0; `k`: lines in all, `lines` of them in a
        page, a multiple of four. Strides are in bytes.
        """
        while rows > 0:
            n = height(rows, ROWS)
            tiles(n, x, ldx, numbers, w, page_bytes, lines, k, out, ldo)
            x += n * ldx
            out += n * ldo
            rows -= n

    return named(paged, name)


paged_product = _product("paged_product", _tiles(read, BYTES))
paged_product_f16 = _product("paged_product_f16", _tiles(read_half, BYTES // 2))

"""Multiply rows of x by sixteen columns of W whose lines lie in pages.

    out = x W

A page has `lines` lines of sixteen columns, one behind another. Sums are those of `tile`: one chain of fused
multiply-adds over all lines, in registers from the first page to the last.
"""

from typing import Any

from llvmlite import ir

from kernels.cpu.products.tile import HEIGHTS, ROWS, UNROLL, TileRows, Visit, by_height, height, integer, named, repeat
from kernels.cpu.simd import BYTES, address, at, index, nothing, op, prefetch, read

_I64 = ir.IntType(64)
PAGES_AHEAD = 4  # a page's lines are prefetched while the fourth page before it is multiplied


@op(nothing, index, address, index, address, address, index, index, index, address, index)
def _tiles(
    b: ir.IRBuilder, rows: Any, x: Any, ldx: Any, numbers: Any, w: Any, page_bytes: Any, lines: Any, k: Any, out: Any,
    ldo: Any,
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
                    prefetch(b, b.add(ask, b.mul(own, integer(BYTES))))
                    sums = visit(b.add(line, own), [read(b, b.add(here, b.mul(own, integer(BYTES))))], sums)
                return sums

            return repeat(b, b.udiv(lines, integer(UNROLL)), sums, unrolled)

        sums = repeat(b, whole, sums, over)
        here, line = page(last), b.mul(whole, lines)

        def one(j: Any, sums: list[Any]) -> list[Any]:
            return visit(b.add(line, j), [read(b, b.add(here, b.mul(j, integer(BYTES))))], sums)

        return repeat(b, rest, sums, one)

    tile = TileRows(x, ldx, out, ldo)
    by_height(b, rows, HEIGHTS, lambda height: tile.multiply(b, height, [w], walk, True))


def _paged(
    rows: int, x: int, ldx: int, numbers: int, w: int, page_bytes: int, lines: int, k: int, out: int, ldo: int
) -> None:
    """`numbers`: address of the pages' numbers, int64; `w`: of page 0; `k`: lines in all, `lines` of them in a page, a
    multiple of four. Strides are in bytes.
    """
    while rows > 0:
        n = height(rows, ROWS)
        _tiles(n, x, ldx, numbers, w, page_bytes, lines, k, out, ldo)
        x += n * ldx
        out += n * ldo
        rows -= n


paged_product = named(_paged, "paged_product")

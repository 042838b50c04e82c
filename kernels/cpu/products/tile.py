"""Multiply a few rows of x by sixteen columns of W: the one product that everything else is made
of.

    out = x W (+ out)

Each output is one chain of fused multiply-adds over k = 0, 1, ...: the same bits in a tile of one
row and of six. Six rows by sixteen columns are twelve of AVX2's sixteen registers, and W is read
once for all of them. `kernels.cpu.products.format_tile` has the tiles over weights that are no float32 yet.

A processor that multiplies does not look far ahead for what it will need from memory, so tiles over
weights ask for lines of it in time; one or two rows take two blocks of W at once, which are two
streams and enough chains of additions.
"""

from dataclasses import dataclass
from typing import Any

from llvmlite import ir

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
    read,
    spread,
)
from kernels.jit import kernel

ROWS = 6  # of the largest tile
PAIR_ROWS = 2  # of the largest one over two blocks; three would need more registers than there are
_UNROLL = 4
_I64, _F32 = ir.IntType(64), ir.FloatType()
_LANES = constant(0.0).type


def _tile(rows: int, fresh: bool = False, blocks: int = 1, every: int = 0) -> Any:
    """Return a tile of `rows` rows; `fresh` ones start at zero, others add to `out`.

    `every` so many lines (0: never) memory is asked for the next 64 bytes from `ask` on.
    """

    @op(nothing, address, index, address, index, index, address, index, address)
    def tile(b: ir.IRBuilder, x: Any, ldx: Any, w: Any, ldw: Any, k: Any, out: Any, ldo: Any, ask: Any) -> Any:
        """Multiply x (rows, k) at stride ldx by w (blocks, k, 16) at stride ldw into out (rows, 16
        blocks) at stride ldo; bytes."""
        size = b.mul(k, ldw)
        ws = [b.add(w, b.mul(size, _int(block))) for block in range(blocks)]
        xs = [b.add(x, b.mul(ldx, _int(row))) for row in range(rows)]
        outs = [b.add(b.add(out, b.mul(ldo, _int(row))), _int(BYTES * i)) for row in range(rows) for i in range(blocks)]
        start = [constant(0.0) if fresh else read(b, where) for where in outs]
        lines = _Lines(ws, ldw, ask, every)
        first, sums = _loop(b, xs, lines, (_int(0), b.and_(k, _int(-_UNROLL)), _UNROLL), start)
        _, sums = _loop(b, xs, lines, (first, k, 1), sums)
        for where, value in zip(outs, sums, strict=True):
            b.store(value, at(b, where, _LANES), align=4)

    return tile


@dataclass(frozen=True, slots=True)
class _Lines:
    """A reader of W: `ldw` bytes from one line of each block at `ws` to the next."""

    ws: list[Any]
    ldw: Any
    ask: Any
    every: int

    def read(self, b: ir.IRBuilder, k: Any, step: int) -> list[Any]:
        """Read line k of each block; `step`: its place in the unrolled loop."""
        if self.every and step % self.every == 0:
            prefetch(b, b.add(self.ask, b.mul(k, _int(BYTES // self.every))))
        return [read(b, b.add(w, b.mul(k, self.ldw))) for w in self.ws]


def _int(value: int) -> ir.Constant:
    return ir.Constant(_I64, value)


def _loop(b: Any, xs: Any, lines: _Lines, over: tuple[Any, Any, int], start: Any) -> tuple[Any, Any]:
    """Emit `for k in range(*over): sums += x[:, k] w[k]`, unrolled; return (the k it ended at,
    sums)."""
    first, end, unroll = over
    before, head, body, after = b.block, *(b.append_basic_block(name) for name in ("head", "body", "after"))
    b.branch(head)
    b.position_at_end(head)
    k = b.phi(_I64)
    k.add_incoming(first, before)
    sums = [b.phi(_LANES) for _ in start]
    for phi, value in zip(sums, start, strict=True):
        phi.add_incoming(value, before)
    b.cbranch(b.icmp_signed("<", k, end), body, after)
    b.position_at_end(body)
    grown = list(sums)
    for step in range(unroll):
        here = b.add(k, _int(step))
        columns = lines.read(b, here, step)
        for row, x in enumerate(xs):
            value = spread(b, b.load(at(b, b.add(x, b.mul(here, _int(4))), _F32), align=4))
            for i, some in enumerate(columns, start=row * len(columns)):
                grown[i] = fused(b, value, some, grown[i])
    k.add_incoming(b.add(k, _int(unroll)), body)
    for phi, value in zip(sums, grown, strict=True):
        phi.add_incoming(value, body)
    b.branch(head)
    b.position_at_end(after)
    return k, sums


@kernel
def height(rows: int) -> int:
    """Return the rows of the next tile.

    Rows are cut into even parts, since a tile of one to four takes as long as its chains do, four
    additions.
    """
    tiles = (rows + ROWS - 1) // ROWS
    return (rows + tiles - 1) // tiles


def _product(name: str, *tiles: Any) -> Any:
    """Return the product of any number of rows, made of the tiles of one to six.

    `name`: its own, or numba might link another one of the same types into what it has kept on disk
    (it tells them apart by a number that each process counts anew).
    """
    one, two, three, four, five, six = tiles

    def product(rows: int, x: int, ldx: int, w: int, ldw: int, k: int, out: int, ldo: int, ask: int = 0) -> None:
        while rows > 0:
            n = height(rows)
            if n == 6:
                six(x, ldx, w, ldw, k, out, ldo, ask)
            elif n == 4:
                four(x, ldx, w, ldw, k, out, ldo, ask)
            elif n == 1:
                one(x, ldx, w, ldw, k, out, ldo, ask)
            elif n == 2:
                two(x, ldx, w, ldw, k, out, ldo, ask)
            elif n == 3:
                three(x, ldx, w, ldw, k, out, ldo, ask)
            else:
                five(x, ldx, w, ldw, k, out, ldo, ask)
            x += n * ldx
            out += n * ldo
            rows -= n

    product.__name__ = product.__qualname__ = name
    return kernel(product)


def _pair(name: str, one: Any, two: Any) -> Any:
    """Return the product of one row or two with two blocks of W that lie one behind the other."""

    def pair(rows: int, x: int, ldx: int, w: int, ldw: int, k: int, out: int, ldo: int) -> None:
        if rows == 1:
            one(x, ldx, w, ldw, k, out, ldo, 0)
        else:
            two(x, ldx, w, ldw, k, out, ldo, 0)

    pair.__name__ = pair.__qualname__ = name
    return kernel(pair)


_HEIGHTS, _PAIRS = range(1, ROWS + 1), range(1, PAIR_ROWS + 1)

# Addresses and strides in bytes; x (rows, k), w (k, 16), out (rows, 16).
product = _product("product", *(_tile(rows, fresh=True) for rows in _HEIGHTS))  # out = x W
product_more = _product("product_more", *(_tile(rows) for rows in _HEIGHTS))  # out += x W

# The same over weights that come from memory: out += x W, and k lines from `ask` on are asked for, or half as many.
stream = _product("stream", *(_tile(rows, every=1) for rows in _HEIGHTS))
stream_half = _product("stream_half", *(_tile(rows, every=2) for rows in _HEIGHTS))

# w (2, k, 16), out (rows, 32): two streams, which the processor follows by itself.
stream_pair = _pair("stream_pair", *(_tile(rows, blocks=2) for rows in _PAIRS))

"""out = x W (+ out): a few rows of x against sixteen columns of W, the one product that everything else is made of.

Each output is one chain of fused multiply-adds over k = 0, 1, ...: the same bits in a tile of one row and of six.
Six rows by sixteen columns are twelve of AVX2's sixteen registers, and W is read once for all of them. W is float32, or
int8 that becomes float32 on the way: x is never rounded, so a row's result depends on no other row there either.
"""

from typing import Any

from llvmlite import ir

from kernels.cpu.jit import kernel
from kernels.cpu.lanes import address, at, constant, fused, index, nothing, op, read, read_int8, spread

ROWS = 6  # of the largest tile
_UNROLL = 4
_I64, _F32 = ir.IntType(64), ir.FloatType()
_LANES = constant(0.0).type


def _tile(rows: int, fresh: bool, weights: Any = read) -> Any:
    """A tile of `rows` rows; `fresh` ones start at zero, others add to `out`. `weights` reads a line of W."""

    @op(nothing, address, index, address, index, index, address, index)
    def tile(b: ir.IRBuilder, x: Any, ldx: Any, w: Any, ldw: Any, k: Any, out: Any, ldo: Any) -> Any:
        """x: (rows, k) at stride ldx; w: (k, 16) at stride ldw; out: (rows, 16) at stride ldo; strides in bytes."""
        xs = [b.add(x, b.mul(ldx, _int(row))) for row in range(rows)]
        outs = [b.add(out, b.mul(ldo, _int(row))) for row in range(rows)]
        start = [constant(0.0) if fresh else read(b, where) for where in outs]
        whole = b.and_(k, _int(-_UNROLL))
        first, sums = _loop(b, weights, xs, w, ldw, (_int(0), whole, _UNROLL), start)
        _, sums = _loop(b, weights, xs, w, ldw, (first, k, 1), sums)
        for where, value in zip(outs, sums, strict=True):
            b.store(value, at(b, where, _LANES), align=4)

    return tile


def _int(value: int) -> ir.Constant:
    return ir.Constant(_I64, value)


def _loop(b: Any, weights: Any, xs: Any, w: Any, ldw: Any, over: tuple[Any, Any, int], start: Any) -> tuple[Any, Any]:
    """Emit `for k in range(*over): sums += x[:, k] w[k]`, unrolled. Returns (the k it ended at, sums)."""
    first, end, unroll = over
    before, head, body, after = b.block, *(b.append_basic_block(name) for name in ("head", "body", "after"))
    b.branch(head)
    b.position_at_end(head)
    k = b.phi(_I64)
    k.add_incoming(first, before)
    sums = [b.phi(_LANES) for _ in xs]
    for phi, value in zip(sums, start, strict=True):
        phi.add_incoming(value, before)
    b.cbranch(b.icmp_signed("<", k, end), body, after)
    b.position_at_end(body)
    news = list(sums)
    for step in range(unroll):
        here = b.add(k, _int(step))
        line = b.add(w, b.mul(here, ldw))
        columns = weights(b, line)
        for row, x in enumerate(xs):
            value = b.load(at(b, b.add(x, b.mul(here, _int(4))), _F32), align=4)
            news[row] = fused(b, spread(b, value), columns, news[row])
    k.add_incoming(b.add(k, _int(unroll)), body)
    for phi, value in zip(sums, news, strict=True):
        phi.add_incoming(value, body)
    b.branch(head)
    b.position_at_end(after)
    return k, sums


@kernel
def _height(rows: int) -> int:
    """Rows of the next tile: even parts, since a tile of one costs as much of W's traffic as one of six."""
    if rows == 7 or rows == 8:
        return 4
    return min(rows, ROWS)


def _product(name: str, *tiles: Any) -> Any:
    """The product of any number of rows, of the tiles of one to six. `name`: its own, or numba might link another one
    of the same types into what it has kept on disk (it tells them apart by a number that each process counts anew)."""
    one, two, three, four, five, six = tiles

    def product(rows: int, x: int, ldx: int, w: int, ldw: int, k: int, out: int, ldo: int) -> None:
        while rows > 0:
            n = _height(rows)
            if n == 6:
                six(x, ldx, w, ldw, k, out, ldo)
            elif n == 4:
                four(x, ldx, w, ldw, k, out, ldo)
            elif n == 1:
                one(x, ldx, w, ldw, k, out, ldo)
            elif n == 2:
                two(x, ldx, w, ldw, k, out, ldo)
            elif n == 3:
                three(x, ldx, w, ldw, k, out, ldo)
            else:
                five(x, ldx, w, ldw, k, out, ldo)
            x += n * ldx
            out += n * ldo
            rows -= n

    product.__name__ = product.__qualname__ = name
    return kernel(product)


# Addresses and strides in bytes; x (rows, k), w (k, 16), out (rows, 16).
product = _product("product", *(_tile(rows, fresh=True) for rows in range(1, ROWS + 1)))  # out = x W
product_int8 = _product("product_int8", *(_tile(rows, True, read_int8) for rows in range(1, ROWS + 1)))  # W of int8
product_more = _product("product_more", *(_tile(rows, fresh=False) for rows in range(1, ROWS + 1)))  # out += x W

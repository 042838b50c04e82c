"""Multiply by weights packed into blocks of sixteen columns, for one thread's range of blocks.

    y = x W^T (+ b)

Each kind of stored weight has one kernel for each form of rows that it takes (`row_blocks`), called by address; a model
compiles those that it needs.
"""

from typing import Any

from llvmlite import ir
from numba.core import cgutils

from kernels.cpu.products.formats import FORMATS, Format
from kernels.cpu.products.integer_formats import INTEGER_FORMATS, IntegerFormat
from kernels.cpu.products.integer_tile import ARITHMETIC, Arithmetic
from kernels.cpu.products.integer_tile import product_of as integer_product_of
from kernels.cpu.products.row_blocks import DENSE
from kernels.cpu.products.tile import (
    AHEAD,
    PAIR_ROWS,
    ROWS,
    expander,
    height,
    named,
    pair_of,
    product_more,
    product_of,
    stream,
    stream_half,
    stream_pair,
)
from kernels.cpu.row_ops import ZERO
from kernels.cpu.simd import BYTES, address, call_with, load, op, splat, store
from kernels.jit import Native, kernel

PANEL = 48  # rows that go over a few blocks before the next rows do: both stay in the second-level cache
CHUNK = 96  # lines of W that more rows than a tile's go over together: 6 KiB
WIDEST = 256  # lines of the largest group
ARGUMENTS = 10  # of `linear`, and of every kernel behind an address


@kernel
def begin(rows: int, bias: int, out: int, ldo: int) -> None:
    values = splat(ZERO) if bias == 0 else load(bias)
    for row in range(rows):
        store(out + row * ldo, values)


@kernel
def multiply(rows: int, x: int, ldx: int, w: int, depth: int, count: int, out: int, ldo: int) -> None:
    """Add x W^T to out for one block, or for two if there are one or two rows.

    More rows than a tile's take W in chunks that stay in the first-level cache; the first two tiles prefetch half of
    the next chunk each.
    """
    if count == 2:
        stream_pair(rows, x, ldx, w, BYTES, depth, out, ldo, 0)
    elif rows <= ROWS:
        stream(rows, x, ldx, w, BYTES, depth, out, ldo, w + AHEAD)
    else:
        one = height(rows, ROWS)
        two = one + height(rows - one, ROWS)
        for k in range(0, depth, CHUNK):
            size, of, line = min(CHUNK, depth - k), x + 4 * k, w + k * BYTES
            ask = line + CHUNK * BYTES
            stream_half(one, of, ldx, line, BYTES, size, out, ldo, ask)
            stream_half(
                two - one, of + one * ldx, ldx, line, BYTES, size, out + one * ldo, ldo, ask + size * BYTES // 2
            )
            product_more(rows - two, of + two * ldx, ldx, line, BYTES, size, out + two * ldo, ldo)


@op(address)
def scratch(b: ir.IRBuilder) -> Any:
    room = cgutils.alloca_once(b, ir.ArrayType(ir.FloatType(), WIDEST * BYTES // 4))
    return b.ptrtoint(room, ir.IntType(64))


call_linear = call_with(ARGUMENTS)  # the code at an address, with what `_over_blocks` returns


def _over_blocks(multiply: Any, lines: int, group_bytes: int, pair_rows: int = PAIR_ROWS) -> Any:
    """Return a function that computes blocks `first ... end - 1` of out = x W^T + b; strides in bytes.

    x (rows, depth) at stride ldx, packed W, bias (0: none), out (rows, 16 blocks) at stride ldo. `multiply` adds x W^T
    to out for one block, or for two with at most `pair_rows` rows.
    """

    def over_blocks(
        rows: int, x: int, ldx: int, w: int, depth: int, bias: int, first: int, end: int, out: int, ldo: int
    ) -> None:
        block_bytes = depth // lines * group_bytes
        for top in range(0, rows, PANEL):
            n, of = min(PANEL, rows - top), x + top * ldx
            block = first
            while block < end:
                to, weights = out + top * ldo + block * BYTES, w + block * block_bytes
                count = 2 if n <= pair_rows and block + 1 < end else 1
                for i in range(count):
                    begin(n, 0 if bias == 0 else bias + (block + i) * BYTES, to + i * BYTES, ldo)
                multiply(n, of, ldx, weights, depth, count, to, ldo)
                block += count

    return over_blocks


def _of_halves(form: Format) -> Native:
    """Two tiles' rows expand W in registers, more rows use chunks expanded once."""
    product, pair, expand = product_of(form), pair_of(form), expander(form)
    lines, group_bytes = form.depth, form.group_bytes

    def multiply_stored(rows: int, x: int, ldx: int, w: int, depth: int, count: int, out: int, ldo: int) -> None:
        if count == 2:
            pair(1, x, ldx, w, depth, out, ldo)
        elif rows <= 2 * ROWS:
            product(rows, x, ldx, w, depth, out, ldo)
        else:
            room = scratch()
            for k in range(0, depth, CHUNK):
                size = min(CHUNK, depth - k)
                expand(w + k // lines * group_bytes, size, room)
                product_more(rows, x + 4 * k, ldx, room, BYTES, size, out, ldo)

    multiply = named(multiply_stored, f"multiply_{form.name}")
    # A row takes two blocks at once, for its sums are a chain each; two rows are two chains, and took a fifth longer.
    return Native(_over_blocks(multiply, lines, group_bytes, pair_rows=1), f"linear_{form.name}", ARGUMENTS)


def _of_blocks(form: IntegerFormat, by: Arithmetic) -> Native:
    """Take one block of columns at a time: two took 1.8 times as long on an EPYC."""
    product = integer_product_of(form, by)

    def multiply_blocks(rows: int, x: int, ldx: int, w: int, depth: int, count: int, out: int, ldo: int) -> None:
        product(rows, x, ldx, w, depth, out, ldo)

    multiply = named(multiply_blocks, f"multiply_{by.name}_{form.name}")
    over_blocks = _over_blocks(multiply, form.depth, form.group_bytes, pair_rows=0)
    return Native(over_blocks, f"{by.name}_linear_{form.name}", ARGUMENTS)


def _by_kind(by: Arithmetic) -> dict[str, Native]:
    found = {form.name: _of_blocks(form, by) for form in INTEGER_FORMATS.values()}
    return {kind: found[form.name] for kind, form in INTEGER_FORMATS.items()}


linear = named(_over_blocks(multiply, 1, BYTES), "linear")  # for W in float32, called from other kernels
_FLOAT32 = Native(_over_blocks(multiply, 1, BYTES), "linear_F32", ARGUMENTS)
LINEAR = {  # by the form of rows, then by ggml's name of the weights' type
    DENSE: {"F32": _FLOAT32, **{kind: _of_halves(form) for kind, form in FORMATS.items()}},
    **{row_form: _by_kind(by) for row_form, by in ARITHMETIC.items()},
}

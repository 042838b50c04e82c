"""Sum products of bytes in registers of eight columns; as AVX2 can, pairs of neighbours in 16 bits.

    sum over lines of w x = sum of the 32-bit halves of sum over pairs (w x + w' x')

A pair is at most 254 (2^n - 1) with weights of n bits: so many are added in 16 bits as surely fit. Of eight bits none
do: w = (w & 127) + 128 (w >> 7), whose products are summed apart.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from kernels.cpu.products.integer_formats import IntegerFormat
from kernels.cpu.products.tile import integer
from kernels.cpu.simd import BYTES, LANES, load_at, spread

COLUMNS = LANES // 2  # of one register
PAIR = 2 * 127  # times a weight: the largest sum of two of its products with a row's bytes
LARGEST = 2**15 - 1

_I8, _I16, _I32 = (ir.IntType(bits) for bits in (8, 16, 32))
_BYTES, _WORDS, _INTS = ir.VectorType(_I8, 4 * COLUMNS), ir.VectorType(_I16, 2 * COLUMNS), ir.VectorType(_I32, COLUMNS)


def sums_by_pairs(
    b: ir.IRBuilder, form: IntegerFormat, weights: Any, of: list[Any], first: int, starts: list[Any]
) -> list[Any]:
    """Add a part's lines `first ... first + form.lines - 1` to where each row's integer sums begin."""
    return _of_halves(_sum_bytes if form.bits == 8 else _sum_words, b, form, weights, of, first, starts)


def sums_by_halves(
    b: ir.IRBuilder, form: IntegerFormat, weights: Any, of: list[Any], first: int, starts: list[Any]
) -> list[Any]:
    """Add as `sums_by_pairs` does, by instructions that multiply and add four bytes at once."""
    return _of_halves(_sum_dots, b, form, weights, of, first, starts)


def dot_bytes(b: ir.IRBuilder, sums: Any, w: Any, x: Any) -> Any:
    """Add to each of eight or sixteen sums four products of unsigned with signed bytes: one instruction."""
    kind = ir.FunctionType(sums.type, [sums.type] * 3)
    return b.call(declared(b, f"llvm.x86.avx512.vpdpbusd.{32 * sums.type.count}", kind), [sums, w, x])


def _of_halves(
    sum_half: Callable[..., list[Any]],
    b: ir.IRBuilder,
    form: IntegerFormat,
    weights: Any,
    of: list[Any],
    first: int,
    starts: list[Any],
) -> list[Any]:
    halves = [sum_half(b, form, b.add(weights, integer(side)), of, first, starts) for side in (0, BYTES // 2)]
    both = ir.Constant(ir.VectorType(_I32, LANES), list(range(LANES)))
    return [b.shuffle_vector(low, high, both) for low, high in zip(*halves, strict=True)]


def _sum_dots(
    b: ir.IRBuilder, form: IntegerFormat, weights: Any, of: list[Any], first: int, starts: list[Any]
) -> list[Any]:
    sums = [spread(b, start, COLUMNS) for start in starts]
    for line, w in form.quads(b, weights, first, form.lines, _INTS):
        xs = [spread(b, load_at(b, where, line, _I32), COLUMNS) for where in of]
        sums = [dot_bytes(b, some, w, x) for some, x in zip(sums, xs, strict=True)]
        if line % 8:
            sums = _in_order(b, sums)
    return sums


def _sum_words(
    b: ir.IRBuilder, form: IntegerFormat, weights: Any, of: list[Any], first: int, starts: list[Any]
) -> list[Any]:
    most, pairs = LARGEST // (PAIR * (2**form.bits - 1)), 0
    ints, words = [spread(b, start, COLUMNS) for start in starts], [_none()] * len(of)
    for line, w in form.quads(b, weights, first, form.lines, _INTS):
        words = _add_products(b, words, w, of, line)
        pairs += 1
        if pairs == most:
            ints, words, pairs = _add_joined(b, ints, words), [_none()] * len(of), 0
        if line % 8 and pairs:
            words = _in_order(b, words)
        elif line % 8:
            ints = _in_order(b, ints)
    return _add_joined(b, ints, words) if pairs else ints


def _sum_bytes(
    b: ir.IRBuilder, form: IntegerFormat, weights: Any, of: list[Any], first: int, starts: list[Any]
) -> list[Any]:
    ints, tops = [spread(b, start, COLUMNS) for start in starts], [_none()] * len(of)
    for line, w in form.quads(b, weights, first, form.lines, _INTS):
        low, top = b.and_(w, _each(0x7F7F7F7F)), b.and_(b.lshr(w, _each(7)), _each(0x01010101))
        ints = _in_order(b, _add_joined(b, ints, _add_products(b, [_none()] * len(of), low, of, line)))
        tops = _in_order(b, _add_products(b, tops, top, of, line))
    return [b.add(low, b.shl(_join(b, top), _each(7))) for low, top in zip(ints, tops, strict=True)]


def _add_products(b: ir.IRBuilder, words: list[Any], w: Any, of: list[Any], line: int) -> list[Any]:
    multiply = declared(b, "llvm.x86.avx2.pmadd.ub.sw", ir.FunctionType(_WORDS, [_BYTES, _BYTES]))
    xs = [spread(b, load_at(b, where, line, _I32), COLUMNS) for where in of]
    products = [b.call(multiply, [b.bitcast(side, _BYTES) for side in (w, x)]) for x in xs]
    return [b.add(some, more) for some, more in zip(words, products, strict=True)]


def _add_joined(b: ir.IRBuilder, ints: list[Any], words: list[Any]) -> list[Any]:
    return [b.add(some, _join(b, more)) for some, more in zip(ints, words, strict=True)]


def _join(b: ir.IRBuilder, words: Any) -> Any:
    join = declared(b, "llvm.x86.avx2.pmadd.wd", ir.FunctionType(_INTS, [_WORDS, _WORDS]))
    return b.call(join, [words, ir.Constant(_WORDS, [1] * 2 * COLUMNS)])


def _in_order(b: ir.IRBuilder, sums: list[Any]) -> list[Any]:
    """Have all sums in registers here, and no load moved past: LLVM would take a row after the other, and keep the
    lines of both halves on the stack for the rest.
    """
    kind, count = sums[0].type, len(sums)
    found = ir.LiteralStructType([kind] * count) if count > 1 else kind
    places = ",".join(["=x"] * count + [str(i) for i in range(count)] + ["~{memory}"])
    barrier = ir.InlineAsm(ir.FunctionType(found, [kind] * count), "", places, side_effect=True)
    kept = b.call(barrier, sums)
    return [b.extract_value(kept, i) for i in range(count)] if count > 1 else [kept]


def declared(b: ir.IRBuilder, name: str, kind: ir.FunctionType) -> Any:
    known = b.module.globals.get(name)
    return known if known is not None else ir.Function(b.module, kind, name)


def _none() -> ir.Constant:
    return ir.Constant(_WORDS, [0] * 2 * COLUMNS)


def _each(value: int) -> ir.Constant:
    return ir.Constant(_INTS, [value] * COLUMNS)

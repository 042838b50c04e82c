"""Give numba functions values of sixteen float32 lanes, which LLVM maps to AVX2, AVX-512 or NEON.

Addresses are in bytes; loads and stores need no alignment and check no bound. `fma` rounds once on every CPU: sums keep
their bits.
"""

import platform
from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any

import numba
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.core.datamodel.registry import register_default
from numba.extending import intrinsic

LANES = 16
MOST_HALF = 65504.0  # the largest float16
BYTES = 4 * LANES

_F32, _I1, _I8, _I32 = ir.FloatType(), ir.IntType(1), ir.IntType(8), ir.IntType(32)
_LANES = ir.VectorType(_F32, LANES)
_INTS = ir.VectorType(_I32, LANES)


class LanesType(types.Type):
    def __init__(self) -> None:
        super().__init__(name="Lanes")


@register_default(LanesType)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, of: LanesType) -> None:
        super().__init__(manager, of, _LANES)


lanes = LanesType()
address, number, index, nothing = types.intp, types.float32, types.intp, types.void
Emit = Callable[..., Any]


def op(returns: types.Type, *takes: types.Type) -> Callable[[Emit], Any]:

    def wrap(emit: Emit) -> Any:
        def typed(context: Any, *args: Any) -> Any:
            def codegen(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
                out = emit(builder, *values)
                return context.get_dummy_value() if returns is nothing else out

            return returns(*takes), codegen

        typed.__name__, typed.__doc__ = emit.__name__, emit.__doc__
        names = ("context", *(f"argument{i}" for i in range(len(takes))))  # numba wants them counted
        typed.__signature__ = Signature([Parameter(name, Parameter.POSITIONAL_ONLY) for name in names])  # type: ignore[attr-defined]
        return intrinsic(typed)

    return wrap


def call_with(arguments: int) -> Any:
    """Return an op that calls the code at an address, of a `Native`, with so many integers."""

    @op(nothing, address, *[index] * arguments)
    def call_native(b: ir.IRBuilder, code: Any, *given: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * arguments)
        b.call(b.inttoptr(code, kind.as_pointer()), given)

    return call_native


def call(b: ir.IRBuilder, name: str, returns: ir.Type, *args: Any) -> Any:
    kind = ir.FunctionType(returns, [arg.type for arg in args])
    return b.call(cgutils.get_or_insert_function(b.module, kind, name), args)


def constant(value: float) -> ir.Constant:
    return ir.Constant(_LANES, [float(value)] * LANES)


def spread(b: ir.IRBuilder, scalar: Any, lanes: int = LANES) -> Any:
    none = ir.Constant(ir.VectorType(scalar.type, lanes), ir.Undefined)
    first = b.insert_element(none, scalar, ir.Constant(_I32, 0))
    return b.shuffle_vector(first, none, ir.Constant(ir.VectorType(_I32, lanes), [0] * lanes))


def at(b: ir.IRBuilder, where: Any, kind: ir.Type) -> Any:
    return b.inttoptr(where, kind.as_pointer())


def load_at(b: ir.IRBuilder, where: Any, offset: int, kind: ir.Type) -> Any:
    return b.load(at(b, b.add(where, ir.Constant(ir.IntType(64), offset)), kind), align=1)


def read(b: ir.IRBuilder, where: Any) -> Any:
    return b.load(at(b, where, _LANES), align=4)


def read_half(b: ir.IRBuilder, where: Any) -> Any:
    if platform.machine() not in ("x86_64", "AMD64") or processor_has("f16c"):
        return b.fpext(b.load(at(b, where, ir.VectorType(ir.HalfType(), LANES)), align=1), _LANES)
    bits = b.zext(b.load(at(b, where, ir.VectorType(ir.IntType(16), LANES)), align=1), _INTS)

    def ints(value: int) -> ir.Constant:
        return ir.Constant(_INTS, [value] * LANES)

    # Exponent and fraction in their places, then 2^112 for the exponent's other bias: exact, subnormals too.
    scaled = b.fmul(b.bitcast(b.shl(b.and_(bits, ints(0x7FFF)), ints(13)), _LANES), constant(2.0**112))
    special = b.icmp_unsigned("==", b.and_(bits, ints(0x7C00)), ints(0x7C00))  # infinities, and what is no number
    found = b.bitcast(scaled, _INTS)
    found = b.select(special, b.or_(found, ints(0x7F800000)), found)
    return b.bitcast(b.or_(found, b.shl(b.and_(bits, ints(0x8000)), ints(16))), _LANES)


def _to_half(b: ir.IRBuilder, x: Any) -> Any:
    """Return the bits of float16, rounded with ties to even; what is too large becomes the largest, NaN stays NaN."""
    for most, sign in ((MOST_HALF, ">"), (-MOST_HALF, "<")):
        x = b.select(b.fcmp_ordered(sign, x, constant(most)), constant(most), x)
    shorts = ir.VectorType(ir.IntType(16), LANES)
    if platform.machine() not in ("x86_64", "AMD64") or processor_has("f16c"):
        return b.bitcast(b.fptrunc(x, ir.VectorType(ir.HalfType(), LANES)), shorts)

    def ints(value: int) -> ir.Constant:
        return ir.Constant(_INTS, [value] * LANES)

    bits = b.bitcast(x, _INTS)
    size = b.and_(bits, ints(0x7FFFFFFF))
    odd = b.and_(b.lshr(size, ints(13)), ints(1))
    normal = b.lshr(b.add(b.add(size, ints(0xFFF - (112 << 23))), odd), ints(13))
    # Below 2^-14: an addition to 0.5 rounds to the fraction's last place.
    small = b.sub(b.bitcast(b.fadd(b.bitcast(size, _LANES), constant(0.5)), _INTS), ints(0x3F000000))
    found = b.select(b.icmp_unsigned("<", size, ints(0x38800000)), small, normal)
    found = b.select(b.icmp_unsigned(">", size, ints(0x7F800000)), ints(0x7E00), found)
    return b.trunc(b.or_(found, b.lshr(b.and_(bits, ints(0x80000000)), ints(16))), shorts)


def processor_has(feature: str) -> bool:
    """`feature`: LLVM's name."""
    name, features = (vars(numba.config)[key] for key in ("CPU_NAME", "CPU_FEATURES"))
    if not name or name == "host" or features is None:
        return bool(dict(binding.get_host_cpu_features()).get(feature))
    since = {"avx2": ("haswell", "znver2", "znver3", "znver4"), "f16c": ("haswell", "znver2", "znver3", "znver4")}
    return f"+{feature}" in features.split(",") or name in since.get(feature, ())  # one named for a test


def prefetch(b: ir.IRBuilder, where: Any) -> None:
    """The address may be invalid."""
    pointer = at(b, where, _I8)
    takes = ir.FunctionType(ir.VoidType(), [pointer.type, _I32, _I32, _I32])
    to_read, everywhere, data = _I32(0), _I32(3), _I32(1)  # into the first-level cache
    b.call(b.module.declare_intrinsic("llvm.prefetch", [pointer.type], takes), [pointer, to_read, everywhere, data])


def fused(b: ir.IRBuilder, x: Any, y: Any, z: Any) -> Any:
    return call(b, "llvm.fma.v16f32", _LANES, x, y, z)


@op(lanes, address)
def load(b: ir.IRBuilder, where: Any) -> Any:
    return read(b, where)


@op(nothing, address, lanes)
def store(b: ir.IRBuilder, where: Any, value: Any) -> Any:
    b.store(value, at(b, where, _LANES), align=4)


@op(nothing, address, lanes)
def store_halves(b: ir.IRBuilder, where: Any, value: Any) -> None:
    halves = _to_half(b, value)
    b.store(halves, at(b, where, halves.type), align=2)


@op(nothing, address, index, lanes)
def scatter_halves(b: ir.IRBuilder, where: Any, step: Any, value: Any) -> None:
    """`step`: bytes between places."""
    halves = _to_half(b, value)
    for lane in range(LANES):
        place = b.add(where, b.mul(step, ir.Constant(step.type, lane)))
        b.store(b.extract_element(halves, ir.Constant(_I32, lane)), at(b, place, ir.IntType(16)), align=2)


@op(number, address)
def load_one(b: ir.IRBuilder, where: Any) -> Any:
    return b.load(at(b, where, _F32), align=4)


@op(index, address)
def load_index(b: ir.IRBuilder, where: Any) -> Any:
    return b.load(at(b, where, ir.IntType(64)), align=8)


@op(nothing, address, number)
def store_one(b: ir.IRBuilder, where: Any, value: Any) -> Any:
    b.store(value, at(b, where, _F32), align=4)


@op(lanes, number)
def splat(b: ir.IRBuilder, value: Any) -> Any:
    return spread(b, value)


@op(lanes, lanes, lanes, lanes)
def fma(b: ir.IRBuilder, x: Any, y: Any, z: Any) -> Any:
    return fused(b, x, y, z)


@op(lanes, lanes)
def absolute(b: ir.IRBuilder, x: Any) -> Any:
    return call(b, "llvm.fabs.v16f32", _LANES, x)


@op(lanes, lanes)
def rint(b: ir.IRBuilder, x: Any) -> Any:
    """Round to whole numbers, ties to even."""
    return call(b, "llvm.rint.v16f32", _LANES, x)


@op(nothing, address, lanes)
def store_int8(b: ir.IRBuilder, where: Any, value: Any) -> Any:
    """Store sixteen whole numbers as int8; NaN as 0."""
    small = ir.VectorType(_I8, LANES)
    # By int32: LLVM makes sixteen scalar conversions of one that saturates.
    numbers = b.select(b.fcmp_ordered("ord", value, value), value, ir.Constant(_LANES, [0.0] * LANES))
    b.store(b.trunc(b.fptosi(numbers, _INTS), small), at(b, where, small), align=1)


@op(nothing, address, number)
def store_int32(b: ir.IRBuilder, where: Any, value: Any) -> Any:
    """Store a whole number as int32; NaN as 0."""
    b.store(call(b, "llvm.fptosi.sat.i32.f32", _I32, value), at(b, where, _I32), align=4)


@op(lanes, lanes, lanes)
def add(b: ir.IRBuilder, x: Any, y: Any) -> Any:
    return b.fadd(x, y)


@op(lanes, lanes, lanes)
def sub(b: ir.IRBuilder, x: Any, y: Any) -> Any:
    return b.fsub(x, y)


@op(lanes, lanes, lanes)
def mul(b: ir.IRBuilder, x: Any, y: Any) -> Any:
    return b.fmul(x, y)


@op(lanes, lanes, lanes)
def div(b: ir.IRBuilder, x: Any, y: Any) -> Any:
    return b.fdiv(x, y)


@op(lanes, lanes, lanes)
def larger(b: ir.IRBuilder, x: Any, y: Any) -> Any:
    """Return the larger of each pair; y where x is NaN."""
    return b.select(b.fcmp_ordered(">", x, y), x, y)


@op(lanes, lanes, index, index, number)
def within(b: ir.IRBuilder, x: Any, first: Any, end: Any, other: Any) -> Any:
    """Keep lanes `first ... end - 1` of x, and put `other` in the rest; bounds may lie outside 0 ... 16."""
    places = ir.Constant(ir.VectorType(first.type, LANES), list(range(LANES)))
    keep = None
    for bound, sign in ((first, ">="), (end, "<")):
        one = b.insert_element(ir.Constant(places.type, ir.Undefined), bound, ir.Constant(_I32, 0))
        many = b.shuffle_vector(one, ir.Constant(places.type, ir.Undefined), ir.Constant(_INTS, [0] * LANES))
        test = b.icmp_signed(sign, places, many)
        keep = test if keep is None else b.and_(keep, test)
    return b.select(keep, x, spread(b, other))


@op(index, lanes, number)
def places_of(b: ir.IRBuilder, x: Any, value: Any) -> Any:
    """Return a bit for each lane that holds the value, the lowest for the first."""
    same = b.fcmp_ordered("==", x, spread(b, value))
    return b.zext(b.bitcast(same, ir.IntType(LANES)), ir.IntType(64))


@op(index, lanes, number)
def num_above(b: ir.IRBuilder, x: Any, value: Any) -> Any:
    larger = b.bitcast(b.fcmp_ordered(">", x, spread(b, value)), ir.IntType(LANES))
    return call(b, "llvm.ctpop.i64", ir.IntType(64), b.zext(larger, ir.IntType(64)))


@op(number, lanes)
def sum_of(b: ir.IRBuilder, x: Any) -> Any:
    """Add by halves."""
    return _fold(b, x, b.fadd)


@op(number, lanes)
def max_of(b: ir.IRBuilder, x: Any) -> Any:
    return _fold(b, x, lambda x, y: b.select(b.fcmp_ordered(">", x, y), x, y))


def _fold(b: ir.IRBuilder, x: Any, join: Callable[[Any, Any], Any]) -> Any:
    width = LANES
    while width > 1:
        width //= 2
        halves = [ir.Constant(ir.VectorType(_I32, width), list(range(i, i + width))) for i in (0, width)]
        x = join(*(b.shuffle_vector(x, ir.Constant(x.type, ir.Undefined), half) for half in halves))
    return b.extract_element(x, ir.Constant(_I32, 0))


@op(lanes, lanes)
def exp(b: ir.IRBuilder, x: Any) -> Any:
    """Compute e^x within 2 units in the last place; 0 below -87, e^88 above 88, and NaN stays NaN.

    x = n ln 2 + r with |r| <= ln(2) / 2, e^r by the polynomial of Cephes' expf.
    """
    low = b.fcmp_unordered("<", x, constant(-87.0))
    high = b.fcmp_ordered(">", x, constant(88.0))
    kept = b.select(high, constant(88.0), b.select(low, constant(-87.0), x))
    n = call(b, "llvm.rint.v16f32", _LANES, b.fmul(kept, constant(1.44269504088896341)))
    r = fused(b, n, constant(-0.693359375), kept)
    r = fused(b, n, constant(2.12194440e-4), r)
    p = constant(1.9875691500e-4)
    for c in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = fused(b, p, r, constant(c))
    p = b.fadd(fused(b, p, b.fmul(r, r), r), constant(1.0))
    bits = b.shl(b.add(b.fptosi(n, _INTS), ir.Constant(_INTS, [127] * LANES)), ir.Constant(_INTS, [23] * LANES))
    out = b.select(b.fcmp_ordered("<", x, constant(-87.0)), constant(0.0), b.fmul(p, b.bitcast(bits, _LANES)))
    return b.select(b.fcmp_unordered("uno", x, x), x, out)

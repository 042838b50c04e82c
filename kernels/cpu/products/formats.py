"""Expand sixteen columns of a line of 16-bit floats in registers.

A packed weight (N, K) is blocks of sixteen columns, each its lines along K. Weights of integers: `integer_formats`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from llvmlite import ir

from kernels.cpu.simd import LANES, load_at, read_half

PIECE = 8  # lines that a tile's innermost loop goes over
LINE_BYTES = 2 * LANES

_I32 = ir.IntType(32)


@dataclass(frozen=True, slots=True)
class Format:
    name: str  # gguf's
    read: Callable[[ir.IRBuilder, Any], Any]  # a line's address -> sixteen float32
    depth: ClassVar = 2 * PIECE  # lines of a group
    group_bytes: ClassVar = depth * LINE_BYTES


def _read_bfloat(b: ir.IRBuilder, where: Any) -> Any:
    ints = ir.VectorType(_I32, LANES)
    wide = b.zext(load_at(b, where, 0, ir.VectorType(ir.IntType(16), LANES)), ints)
    return b.bitcast(b.shl(wide, ir.Constant(ints, [16] * LANES)), ir.VectorType(ir.FloatType(), LANES))


FORMATS = {one.name: one for one in (Format("BF16", _read_bfloat), Format("F16", read_half))}

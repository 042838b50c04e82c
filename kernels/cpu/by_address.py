"""Hand tuples to compiled code by an address, as its callers by address take integers alone (`kernels.jit.Native`)."""

from typing import Annotated, Any, get_args, get_origin, get_type_hints

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic

Ints1 = Annotated[np.ndarray, types.int64[::1]]
Ints2 = Annotated[np.ndarray, types.int64[:, ::1]]
Ints3 = Annotated[np.ndarray, types.int64[:, :, ::1]]
Words2 = Annotated[np.ndarray, types.uint32[:, ::1]]
Floats1 = Annotated[np.ndarray, types.float32[::1]]
Floats2 = Annotated[np.ndarray, types.float32[:, ::1]]
Floats3 = Annotated[np.ndarray, types.float32[:, :, ::1]]
Doubles2 = Annotated[np.ndarray, types.float64[:, ::1]]
SCALARS = {int: types.int64, float: types.float64}


def type_of(kind: Any) -> types.Type:
    """Return numba's type of a tuple class, or of a field's annotation."""
    if get_origin(kind) is Annotated:
        found: types.Type = get_args(kind)[1]
        return found
    if kind in SCALARS:
        return SCALARS[kind]
    return types.NamedTuple([type_of(one) for one in get_type_hints(kind, include_extras=True).values()], kind)


def by_address(kind: type) -> tuple[Any, Any]:
    """Return what gives the address of a copy of such a tuple, and what gives the tuple at an address.

    The copy lasts as long as its caller's frame.
    """
    known = type_of(kind)

    def address_of(typing: Any, value: Any) -> Any:
        if value != known:
            raise TypingError(f"{value} is no {known}")

        def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
            return builder.ptrtoint(cgutils.alloca_once_value(builder, args[0]), ir.IntType(64))

        return types.intp(value), codegen

    def value_at(typing: Any, address: Any) -> Any:

        def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
            value = builder.load(builder.inttoptr(args[0], context.get_value_type(known).as_pointer()))
            context.nrt.incref(builder, known, value)
            return value

        return known(address), codegen

    return intrinsic(address_of), intrinsic(value_at)

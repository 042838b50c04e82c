"""Read a token's embedding from a packed weight as float32."""

from typing import Any

from kernels.cpu.products.formats import FORMATS
from kernels.cpu.products.integer_formats import INTEGER_FORMATS
from kernels.cpu.products.integer_tile import expander as integer_expander
from kernels.cpu.products.linear import CHUNK, scratch
from kernels.cpu.products.tile import expander
from kernels.cpu.simd import BYTES, LANES, call_with, load_one, store_one
from kernels.jit import Native

ARGUMENTS = 4  # of every kernel here


# Calls the kernel at an address with: packed W, depth, a row's number, the address of (depth,) float32.
call_row = call_with(ARGUMENTS)


def _stored(form: Any, expand: Any) -> Native:
    lines, group_bytes = form.depth, form.group_bytes
    chunk = max(lines, CHUNK // lines * lines)

    def row(w: int, depth: int, number: int, out: int) -> None:
        block, lane = w + number // LANES * (depth // lines * group_bytes), number % LANES
        room = scratch()
        for k in range(0, depth, chunk):
            size = min(chunk, depth - k)
            expand(block + k // lines * group_bytes, size, room)
            for i in range(size):
                store_one(out + 4 * (k + i), load_one(room + i * BYTES + 4 * lane))

    return Native(row, f"row_{form.name}", ARGUMENTS)


def _row(w: int, depth: int, number: int, out: int) -> None:
    block = w + number // LANES * depth * BYTES + 4 * (number % LANES)
    for k in range(depth):
        store_one(out + 4 * k, load_one(block + k * BYTES))


_OF_INTEGERS = {form.name: _stored(form, integer_expander(form)) for form in INTEGER_FORMATS.values()}
ROW = {  # by ggml's name of the weight's type, as it is packed
    "F32": Native(_row, "row_F32", ARGUMENTS),
    **{kind: _stored(form, expander(form)) for kind, form in FORMATS.items()},
    **{kind: _OF_INTEGERS[form.name] for kind, form in INTEGER_FORMATS.items()},
}

"""Run one forward of a Llama-shaped decoder over packed rows and paged keys and values, on a team's threads.

    x = norm(h);  q, k, v = x W + b, rotated;  h += attention(q, K, V) W_o
    x = norm(h);  h += (silu(x W_g) * (x W_u)) W_d;  after the last layer: logits = norm(h) W_head

`app/engine/cpu/fused.py` fills the tuples; the plain torch forward is the reference.
"""

from typing import Any, NamedTuple

from kernels.cpu.attention_block import columns, fork, mix, place
from kernels.cpu.by_address import by_address
from kernels.cpu.products.embedding import call_row
from kernels.cpu.products.linear import PANEL, call_linear
from kernels.cpu.products.row_blocks import BLOCK, BLOCK_BYTES, DENSE, write_part
from kernels.cpu.row_ops import add_to, best, copy, gate, rms_norm
from kernels.cpu.shapes import (
    DOWN,
    DOWN_BIAS,
    GATE_UP,
    NORM1,
    NORM2,
    ON_BLOCKS,
    ON_DOWN,
    ON_GATE,
    ON_NEXT,
    ON_OUT,
    ON_PLACE,
    ON_QKV,
    ON_UPDATE,
    OUT,
    OUT_BIAS,
    PARTS,
    QKV_BIAS,
    K,
    Model,
    Q,
    Room,
    Step,
    V,
)
from kernels.cpu.simd import BYTES, LANES
from kernels.cpu.threads import enter, lead, leave, meet, take
from kernels.jit import Native, entry, kernel


class DecodeArgs(NamedTuple):
    model: Model
    step: Step
    room: Room
    first: int
    end: int


decode_args, decode_args_at = by_address(DecodeArgs)


@entry
def run_decode(words: int, threads: int, code: int, m: Model, s: Step, r: Room, first: int, end: int) -> None:
    """Run `decode` on the team whose words these are; code: the address of DECODE."""
    lead(words, threads, code, decode_args(DecodeArgs(m, s, r, first, end)))


def _decode_share(job: int, thread: int) -> None:
    own = decode_args_at(job)
    decode(own.model, own.step, own.room, own.first, own.end, thread)


@kernel
def decode(m: Model, s: Step, r: Room, first: int, end: int, thread: int) -> None:
    """Compute one thread's share of layers `first ... end - 1`.

    Layer 0 also embeds the rows, the last layer also makes logits. Between calls rows may be removed from `hidden`,
    `normed` and the step. Counters (one set a layer) and `words` start at zero.
    """
    if first == 0:
        embed(m, s, r, 0)
        meet(r.words, r.threads)
    else:
        write_all(m, r, PARTS * (first + 1) + ON_BLOCKS, r.normed, m.hidden, len(s.ids))
    for layer in range(first, end):
        decode_layer(m, s, r, layer, thread)
    if end == m.num_layers:
        finish(m, s, r, PARTS * (m.num_layers + 1), thread)


@kernel
def decode_layer(m: Model, s: Step, r: Room, layer: int, thread: int) -> None:
    """Compute one layer; `normed` becomes the next one's input, or the head's."""
    first = PARTS * (layer + 1)
    w = m.layers[layer]
    of_query, of_key = m.num_heads * m.head_dim // LANES, m.num_key_heads * m.head_dim // LANES
    qkv = (
        (w[Q], w[Q + 1], w[Q + 2], of_query),
        (w[K], w[K + 1], w[K + 2], of_key),
        (w[V], w[V + 1], w[V + 2], of_key),
    )
    project(s, r, first + ON_QKV, r.normed, r.blocks, m.hidden, qkv, w[QKV_BIAS], r.mixed, columns(m))
    rows = len(s.ids)
    works = enter(r.words, r.threads, rows)
    if works:
        place(m, s, r, first + ON_PLACE, layer)
    leave(r.words, r.threads, rows, works)
    if len(s.copies) > 0:
        fork(m, s, r, first, layer)
    mix(m, s, r, first, layer, thread)
    out = ((w[OUT], w[OUT + 1], w[OUT + 2], m.hidden // LANES),)
    project(s, r, first + ON_OUT, r.attended, r.blocks, m.num_heads * m.head_dim, out, w[OUT_BIAS], r.update, m.hidden)
    works = enter(r.words, r.threads, rows)
    if works:
        update(m, s, r, first + ON_UPDATE, w[NORM2])
    leave(r.words, r.threads, rows, works)
    open_gate(m, s, r, first + ON_GATE, (w[GATE_UP], w[GATE_UP + 1], w[GATE_UP + 2]), thread)
    meet(r.words, r.threads)
    down = ((w[DOWN], w[DOWN + 1], w[DOWN + 2], m.hidden // LANES),)
    project(s, r, first + ON_DOWN, r.gated, r.gated_blocks, m.inner, down, w[DOWN_BIAS], r.update, m.hidden)
    works = enter(r.words, r.threads, rows)
    if works:
        last = layer == m.num_layers - 1
        update(m, s, r, first + ON_NEXT, m.final_norm if last else m.layers[layer + 1, NORM1])
    leave(r.words, r.threads, rows, works)


@kernel
def embed(m: Model, s: Step, r: Room, part: int) -> None:
    while True:
        row = take(r.words, part, 1)
        if row >= len(s.ids):
            return
        at = 4 * row * m.hidden
        call_row(m.embedding_kernel, m.embedding, m.hidden, s.ids[row], r.hidden + at)
        if s.added != 0:
            add_to(r.hidden + at, s.added + at, m.hidden)
        rms_norm(r.hidden + at, m.layers[0, NORM1], m.epsilon, m.hidden, r.normed + at)
        write_part(m.row_form, r.normed, r.blocks, row, m.hidden, 0, m.hidden)


@kernel
def project(
    s: Step, r: Room, part: int, x: int, in_blocks: int, depth: int, weights: Any, bias: int, out: int, width: int
) -> None:
    """Compute out (T, width) = x (T, depth) W + b for all rows, some blocks of columns at a time.

    weights: the parts of W: (address of the kernel, of the packed weight, the form of rows it takes, blocks of
    columns); bias: address (0: none).
    """
    blocks = -(-width // LANES)
    piece = max(1, blocks // (8 * r.threads))
    piece -= piece % 2 if piece > 1 else 0  # pairs are read faster
    while True:
        first = take(r.words, part, piece)
        if first >= blocks:
            return
        end = min(first + piece, blocks)
        before = 0
        for code, w, row_form, size in weights:
            own, own_end = max(first - before, 0), min(end - before, size)
            if own < own_end:
                b = 0 if bias == 0 else bias + before * BYTES
                to = out + before * BYTES
                rows, row = source(x, in_blocks, depth, row_form)
                call_linear(code, len(s.ids), rows, row, w, depth, b, own, own_end, to, 4 * width)
            before += size


@kernel
def write_all(m: Model, r: Room, part: int, x: int, depth: int, rows: int) -> None:
    if m.row_form == DENSE:
        return
    while True:
        row = take(r.words, part, 1)
        if row >= rows:
            break
        write_part(m.row_form, x, r.blocks, row, depth, 0, depth)
    meet(r.words, r.threads)


@kernel
def source(x: int, blocks: int, depth: int, row_form: int) -> tuple[int, int]:
    """Return a row's address and stride in bytes, of x (rows, depth) or of its blocks."""
    if row_form == DENSE:
        return x, 4 * depth
    return blocks, depth // BLOCK * BLOCK_BYTES[row_form]


@kernel
def update(m: Model, s: Step, r: Room, part: int, norm: int) -> None:
    while True:
        row = take(r.words, part, 1)
        if row >= len(s.ids):
            return
        at = 4 * row * m.hidden
        add_to(r.hidden + at, r.update + at, m.hidden)
        rms_norm(r.hidden + at, norm, m.epsilon, m.hidden, r.normed + at)
        write_part(m.row_form, r.normed, r.blocks, row, m.hidden, 0, m.hidden)


@kernel
def open_gate(m: Model, s: Step, r: Room, part: int, weight: tuple[int, int, int], thread: int) -> None:
    """Compute silu(x W_g) * (x W_u). Blocks of the two weights alternate."""
    pairs = m.inner // LANES
    piece = max(2, pairs // (8 * r.threads) // 2 * 2)  # two are a block of a row
    room = r.scores + thread * r.scores_bytes
    code, w, row_form = weight
    of, row_bytes = source(r.normed, r.blocks, m.hidden, row_form)
    while True:
        first = take(r.words, part, piece)
        if first >= pairs:
            return
        for top in range(0, len(s.ids), PANEL):
            rows = min(PANEL, len(s.ids) - top)
            for pair in range(first, min(first + piece, pairs)):
                x = of + top * row_bytes
                first_block = 2 * pair
                to = room - first_block * BYTES
                call_linear(code, rows, x, row_bytes, w, m.hidden, 0, first_block, first_block + 2, to, 2 * BYTES)
                for row in range(rows):
                    gate(room + 2 * BYTES * row, r.gated + 4 * ((top + row) * m.inner + pair * LANES))
                    if pair % 2 == 1:
                        write_part(m.row_form, r.gated, r.gated_blocks, top + row, m.inner, (pair - 1) * LANES, BLOCK)


@kernel
def finish(m: Model, s: Step, r: Room, part: int, thread: int) -> None:
    n = len(s.wanted)
    if thread == 0:
        for i in range(n):
            copy(r.normed + 4 * s.wanted[i] * m.hidden, r.update + 4 * i * m.hidden, m.hidden)
    meet(r.words, r.threads)
    write_all(m, r, part + 2, r.update, m.hidden, n)
    x, row = source(r.update, r.blocks, m.hidden, m.head_form)
    blocks = -(-m.vocab // LANES)
    while True:
        first = take(r.words, part, 16)
        if first >= blocks:
            break
        end = min(first + 16, blocks)
        call_linear(m.head_kernel, n, x, row, m.head, m.hidden, m.head_bias, first, end, r.logits, BYTES * blocks)
    meet(r.words, r.threads)
    while True:
        i = take(r.words, part + 1, 1)
        if i >= n:
            break
        r.best[i] = best(r.logits + i * BYTES * blocks, m.vocab)
    meet(r.words, r.threads)


DECODE = Native(_decode_share, "decode_share", 2)

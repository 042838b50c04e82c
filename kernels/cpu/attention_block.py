"""Run a layer's attention between its products: positions, cache, side branches, attention, joins."""

import numpy as np

from kernels.cpu.attention import attend, join
from kernels.cpu.products.row_blocks import write_part
from kernels.cpu.row_ops import copy, rms_norm, rotate
from kernels.cpu.shapes import K_NORM, ON_FORK, ON_FORKED, ON_JOIN, ON_MIX, Q_NORM, WINDOW, Model, Room, Step
from kernels.cpu.simd import (
    LANES,
    load,
    load_one,
    mul,
    scatter_halves,
    splat,
    store,
    store_halves,
    store_one,
)
from kernels.cpu.threads import enter, leave, meet, take
from kernels.jit import kernel


@kernel
def columns(m: Model) -> int:
    return (m.num_heads + 2 * m.num_key_heads) * m.head_dim


@kernel
def place(m: Model, s: Step, r: Room, part: int, layer: int) -> None:
    w = m.layers[layer]
    while True:
        row = take(r.words, part, 1)
        if row >= len(s.ids):
            return
        turn = 4 * m.head_dim * s.positions[row]
        at = r.mixed + 4 * row * columns(m)
        for head in range(m.num_heads + m.num_key_heads):
            here = at + 4 * head * m.head_dim
            norm = w[Q_NORM] if head < m.num_heads else w[K_NORM]
            if norm != 0:
                rms_norm(here, norm, m.epsilon, m.head_dim, here)
            rotate(here, m.cos + turn, m.sin + turn, m.head_dim)
        if s.own[row, 0] >= 0:
            write(m, r, layer, row, s.own[row, 0], s.own[row, 1])


@kernel
def write(m: Model, r: Room, layer: int, row: int, page: int, offset: int) -> None:
    size = m.head_dim * m.page_tokens
    k = r.mixed + 4 * (row * columns(m) + m.num_heads * m.head_dim)
    v = k + 4 * m.num_key_heads * m.head_dim
    for head in range(m.num_key_heads):
        at = m.kv_item * (((layer * m.num_pages + page) * m.num_key_heads + head) * size)
        block = m.kv_item * (offset // LANES * LANES * m.head_dim + offset % LANES)
        line, own = m.kv_item * LANES, 4 * head * m.head_dim
        if m.kv_item == 4:
            scatter(k + own, m.keys + at + block, line, m.head_dim)
            for i in range(0, m.head_dim, LANES):
                store(m.values + at + 4 * i * m.page_tokens + line * offset, load(v + own + 4 * i))
        else:
            for i in range(0, m.head_dim, LANES):
                scatter_halves(m.keys + at + block + i * line, line, load(k + own + 4 * i))
                store_halves(m.values + at + 2 * i * m.page_tokens + line * offset, load(v + own + 4 * i))


@kernel
def scatter(x: int, out: int, step: int, size: int) -> None:
    """`step`: bytes between places."""
    for i in range(size):
        store_one(out + i * step, load_one(x + 4 * i))


@kernel
def fork(m: Model, s: Step, r: Room, first: int, layer: int) -> None:
    size = m.num_key_heads * m.head_dim * m.page_tokens
    while True:
        i = take(r.words, first + ON_FORK, 1)
        if i >= 2 * len(s.copies):
            break
        base = m.keys if i % 2 == 0 else m.values
        to, of = s.copies[i // 2]
        page = m.kv_item * size
        copy(base + (layer * m.num_pages + of) * page, base + (layer * m.num_pages + to) * page, page // 4)
    meet(r.words, r.threads)
    while True:
        i = take(r.words, first + ON_FORKED, 1)
        if i >= len(s.forked):
            break
        write(m, r, layer, s.forked[i, 0], s.forked[i, 1], s.forked[i, 2])
    meet(r.words, r.threads)


@kernel
def mix(m: Model, s: Step, r: Room, first: int, layer: int, thread: int) -> None:
    units = len(s.units) * m.num_key_heads
    split_any = False
    while True:
        i = take(r.words, first + ON_MIX, 1)
        if i >= units:
            break
        mix_unit(m, s, r, layer, thread, i // m.num_key_heads, i % m.num_key_heads)
    for tile in range(len(s.tiles)):
        split_any = split_any or s.tiles[tile, 5] > 1
    if not split_any:
        meet(r.words, r.threads)
        return
    works = enter(r.words, r.threads, len(s.tiles))
    if works:
        put_all_together(m, s, r, first + ON_JOIN)
    leave(r.words, r.threads, len(s.tiles), works)


@kernel
def put_all_together(m: Model, s: Step, r: Room, part: int) -> None:
    while True:
        tile = take(r.words, part, 1)
        if tile >= len(s.tiles):
            return
        if s.tiles[tile, 5] > 1:
            for head in range(m.num_key_heads):
                put_together(m, s, r, tile, head)


@kernel
def mix_unit(m: Model, s: Step, r: Room, layer: int, thread: int, unit: int, head: int) -> None:
    tile, split, line = s.units[unit]
    first, rows, position, first_page, _, splits = s.tiles[tile]
    fold = m.num_heads // m.num_key_heads
    depth = m.head_dim
    queries = r.queries + thread * r.queries_bytes
    scale = splat(np.float32(m.scale))
    for i in range(rows):
        of = r.mixed + 4 * (s.tile_rows[first + i] * columns(m) + head * fold * depth)
        for j in range(0, fold * depth, LANES):
            store(queries + 4 * (i * fold * depth + j), mul(load(of + 4 * j), scale))
    size = m.kv_item * depth * m.page_tokens
    at = (layer * m.num_pages * m.num_key_heads + head) * size
    window = m.layers[layer, WINDOW]
    here = (line * m.num_key_heads + rows * head) * fold
    attend(
        m.attention_kernel, queries, rows, fold, position, split, window, s.pages.ctypes.data + 8 * first_page,
        m.keys + at, m.values + at, m.num_key_heads * size, m.page_tokens, depth,
        r.scores + thread * r.scores_bytes, r.sums + 4 * here * depth, r.stats + 8 * here,
    )  # fmt: skip
    if splits == 1:
        put_together(m, s, r, tile, head)


@kernel
def put_together(m: Model, s: Step, r: Room, tile: int, head: int) -> None:
    first, rows, _, _, unit, splits = s.tiles[tile]
    fold, depth = m.num_heads // m.num_key_heads, m.head_dim
    here = (s.units[unit, 2] * m.num_key_heads + rows * head) * fold
    step = rows * m.num_heads  # lines from one split of the tile to the next
    for i in range(rows):
        for j in range(fold):
            line = here + i * fold + j
            out = r.attended + 4 * depth * (s.tile_rows[first + i] * m.num_heads + head * fold + j)
            join(r.sums + 4 * line * depth, r.stats + 8 * line, splits, 4 * step * depth, 8 * step, depth, out)
        row, wide = s.tile_rows[first + i], m.num_heads * depth
        write_part(m.row_form, r.attended, r.blocks, row, wide, head * fold * depth, fold * depth)

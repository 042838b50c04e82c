"""Run a draft's forwards in one call, each on the likeliest token of the one before.

p = softmax(logits);  guess = (largest, second largest of p);  the largest is the next step's token
"""

import math
from typing import NamedTuple

import numpy as np

from kernels.cpu.attention import SPLIT
from kernels.cpu.decoder import decode
from kernels.cpu.row_ops import LOWEST, ZERO, first_at
from kernels.cpu.shapes import PARTS, Model, Room, Step
from kernels.cpu.simd import (
    BYTES,
    LANES,
    add,
    exp,
    larger,
    load,
    load_one,
    max_of,
    splat,
    store_one,
    sub,
    sum_of,
    within,
)
from kernels.cpu.threads import HEADER, meet, publish
from kernels.jit import entry, kernel


class Chain(NamedTuple):
    depth: int  # guesses a sequence at most, 1 or more
    floor: float  # ends when no sequence's confidences multiply to so much
    page_tokens: int
    head_ids: np.ndarray  # (columns of the head,) int64, the token each stands for; empty: all, in order
    first_page: np.ndarray  # (B,) int64, of each sequence in step.pages
    step: Step  # arrays for steps of one row a sequence; its units have room for the last
    num_units: np.ndarray  # (1,) int64, of the present step
    survival: np.ndarray  # (B,) float32, ones before
    guesses: np.ndarray  # (depth, B, 2) int64, tokens; -1 where the logits are no numbers
    chances: np.ndarray  # (depth, B, 2) float32
    steps: np.ndarray  # (1,) int64, steps done


@entry
def draft(m: Model, s: Step, r: Room, c: Chain, thread: int) -> None:
    """Compute one thread's share of the steps. Counters and `words` are zero before.

    `s`: the first step, for the last row of each sequence; `c.step.positions`: those of the next ones.
    """
    layer, done = int(np.int64(0)), 0  # a literal would be another type, for which `decode` is compiled once more
    decode(m, s, r, layer, m.num_layers, thread)
    while True:
        for i in range(thread, len(c.survival), r.threads):
            guess(m, r, c, done, i)
        meet(r.words, r.threads)
        if thread == 0:
            c.steps[0] = done + 1
        done += 1
        if done >= c.depth or not goes_on(c, done - 1):
            return
        meet(r.words, r.threads)  # all have seen that it goes on
        if thread == 0:
            advance(m, r, c, done - 1)
        meet(r.words, r.threads)
        n = c.step
        units = n.units[: c.num_units[0]]
        following = Step(
            n.ids,
            n.positions,
            n.own,
            n.copies,
            n.forked,
            n.tile_rows,
            n.tiles,
            n.pages,
            units,
            n.wanted,
            n.added,
        )
        decode(m, following, r, layer, m.num_layers, thread)


@kernel
def goes_on(c: Chain, done: int) -> bool:
    likely = False
    for i in range(len(c.survival)):
        if c.guesses[done, i, 0] < 0:
            return False
        likely = likely or c.survival[i] >= c.floor
    return likely


@kernel
def guess(m: Model, r: Room, c: Chain, done: int, i: int) -> None:
    row = r.logits + i * BYTES * -(-m.vocab // LANES)
    first = r.best[i]
    if first < 0:
        c.guesses[done, i, 0] = -1
        return
    highest = load_one(row + 4 * first)
    total = sum_exp(row, highest, m.vocab)
    second, chance = first, 0.0
    if m.vocab > 1:
        store_one(row + 4 * first, LOWEST)
        second = highest_at(row, m.vocab)
        chance = math.exp(load_one(row + 4 * second) - highest) / total
        store_one(row + 4 * first, highest)
    c.chances[done, i, 0] = 1.0 / total
    c.chances[done, i, 1] = chance
    c.survival[i] *= np.float32(1.0 / total)
    c.guesses[done, i, 0] = c.head_ids[first] if len(c.head_ids) > 0 else first
    c.guesses[done, i, 1] = c.head_ids[second] if len(c.head_ids) > 0 else second


@kernel
def sum_exp(x: int, highest: float, size: int) -> float:
    total, top = splat(ZERO), splat(highest)
    for i in range(0, size, LANES):
        v = exp(sub(load(x + 4 * i), top))
        total = add(total, within(v, 0, size - i, ZERO) if i + LANES > size else v)
    return sum_of(total)


@kernel
def highest_at(x: int, size: int) -> int:
    top = splat(LOWEST)
    for i in range(0, size, LANES):
        v = load(x + 4 * i)
        top = larger(within(v, 0, size - i, LOWEST) if i + LANES > size else v, top)
    return max(0, first_at(x, size, max_of(top)))


@kernel
def advance(m: Model, r: Room, c: Chain, done: int) -> None:
    n = c.step
    unit = 0
    for i in range(len(n.ids)):
        if done > 0:
            n.positions[i] += 1
        position = n.positions[i]
        n.ids[i] = c.guesses[done, i, 0]
        n.own[i, 0] = n.pages[c.first_page[i] + position // c.page_tokens]
        n.own[i, 1] = position % c.page_tokens
        splits = -(-(position + 1) // SPLIT)
        n.tiles[i, 2], n.tiles[i, 4], n.tiles[i, 5] = position, unit, splits
        for split in range(splits):
            n.units[unit, 0], n.units[unit, 1], n.units[unit, 2] = i, split, unit
            unit += 1
    c.num_units[0] = unit
    for counter in range(PARTS * (m.num_layers + 2)):
        publish(r.words + 8 * (HEADER + counter), 0)

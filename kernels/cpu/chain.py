"""Run a draft's forwards in one call, each on the best token of the one before.

Without temperature: p = softmax(logits);  guess = (largest, second largest of p);  the largest is the next step's
token. With one: the two best of the logits with the target's noise (`kernels.sampling.contenders`).
"""

import math
from typing import NamedTuple

import numpy as np

from kernels.cpu.attention import splits_of
from kernels.cpu.by_address import Doubles2, Floats1, Floats2, Floats3, Ints1, Ints3, Words2, by_address
from kernels.cpu.decoder import DecodeArgs, decode_args
from kernels.cpu.row_ops import LOWEST, ONE, ZERO, first_at
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
    mul,
    splat,
    store_one,
    sub,
    sum_of,
    within,
)
from kernels.cpu.threads import HEADER, lead, meet, publish, run_job
from kernels.jit import Native, entry, kernel
from kernels.sampling.contenders import Filters, key_of, two_best


class Chain(NamedTuple):
    decode: int  # address of `kernels.cpu.decoder.DECODE`
    depth: int  # guesses a sequence at most, 1 or more
    floor: float  # ends when no sequence's confidences multiply to so much
    page_tokens: int
    head_ids: Ints1  # (columns of the head,), the token each stands for; empty: all, in order
    first_page: Ints1  # (B,), of each sequence in step.pages
    first_position: Ints1  # (B,), of each sequence's first guess
    step: Step  # arrays for steps of one row a sequence; its units have room for the last
    num_units: Ints1  # (1,), of the present step
    survival: Floats1  # (B,), ones before
    guesses: Ints3  # (depth, B, 2), tokens; -1 where the logits are no numbers
    chances: Floats3  # (depth, B, 2)
    steps: Ints1  # (1,), steps done
    logits: Floats2  # (B, columns of the head in whole blocks), which each step writes
    limits: Doubles2  # (B, 3): temperature (0: none), top_p, logarithm of min_p
    top_k: Ints1  # (B,)
    noise: Words2  # (B, 3), the words of seed and choice


class DraftArgs(NamedTuple):
    model: Model
    step: Step
    room: Room
    chain: Chain


draft_args, draft_args_at = by_address(DraftArgs)


@entry
def run_draft(words: int, threads: int, code: int, m: Model, s: Step, r: Room, c: Chain) -> None:
    """Run `draft` on the team whose words these are; code: the address of DRAFT."""
    lead(words, threads, code, draft_args(DraftArgs(m, s, r, c)))


def _draft_share(job: int, thread: int) -> None:
    own = draft_args_at(job)
    draft(own.model, own.step, own.room, own.chain, thread)


@kernel
def draft(m: Model, s: Step, r: Room, c: Chain, thread: int) -> None:
    """Compute one thread's share of the steps. Counters and `words` are zero before.

    `s`: the first step, for the last row of each sequence; `c.step.positions`: those of the next ones.
    """
    done = int(np.int64(0))  # a literal would be another type, for which `guess` is compiled once more
    run_job(c.decode, decode_args(DecodeArgs(m, s, r, 0, m.num_layers)), thread)
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
        run_job(c.decode, decode_args(DecodeArgs(m, following, r, 0, m.num_layers)), thread)


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
    highest, temperature = load_one(row + 4 * first), np.float32(c.limits[i, 0])
    if temperature > ZERO:
        filters = Filters(c.top_k[i], c.limits[i, 1], c.limits[i, 2])
        mass = sum_exp(row, highest, m.vocab, ONE / temperature) if filters.top_p < 1.0 else 0.0
        noise = key_of(c.noise[i, 0], c.noise[i, 1], c.noise[i, 2], c.first_position[i] + done)
        x = c.logits[i][: m.vocab]
        write_guess(c, done, i, *two_best(x, first, mass, temperature, filters, c.head_ids, noise))
        return
    total = sum_exp(row, highest, m.vocab, ONE)
    second, chance = first, 0.0
    if m.vocab > 1:
        store_one(row + 4 * first, LOWEST)
        second = highest_at(row, m.vocab)
        chance = math.exp(load_one(row + 4 * second) - highest) / total
        store_one(row + 4 * first, highest)
    write_guess(c, done, i, first, second, 1.0 / total, chance)


@kernel
def write_guess(c: Chain, done: int, i: int, first: int, second: int, chance: float, other: float) -> None:
    c.chances[done, i, 0], c.chances[done, i, 1] = chance, other
    c.survival[i] *= np.float32(chance)
    c.guesses[done, i, 0] = c.head_ids[first] if len(c.head_ids) > 0 else first
    c.guesses[done, i, 1] = c.head_ids[second] if len(c.head_ids) > 0 else second


@kernel
def sum_exp(x: int, highest: float, size: int, factor: np.float32) -> float:
    """Add e^(factor (x - highest))."""
    total, top, by = splat(ZERO), splat(highest), splat(factor)
    for i in range(0, size, LANES):
        v = exp(mul(sub(load(x + 4 * i), top), by))
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
        splits = splits_of(position + 1)
        n.tiles[i, 2], n.tiles[i, 4], n.tiles[i, 5] = position, unit, splits
        for split in range(splits):
            n.units[unit, 0], n.units[unit, 1], n.units[unit, 2] = i, split, unit
            unit += 1
    c.num_units[0] = unit
    for counter in range(PARTS * (m.num_layers + 2)):
        publish(r.words + 8 * (HEADER + counter), 0)


DRAFT = Native(_draft_share, "draft_share", 2)

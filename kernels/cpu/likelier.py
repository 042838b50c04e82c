"""Count the tokens that a head finds likelier than a given one at each row, over the whole vocabulary.

    x = norm(h);  z = x W_head (+ b);  counts_i = #{v : z_iv > z_it_i}

Blocks of the head's columns are multiplied and compared on the spot: no logits are kept, none are sorted (FASER, papers
2.2). The products are those of the forward's head: behind the last layer the target's choice has a count of 0.
"""

from typing import NamedTuple

import numpy as np

from kernels.cpu.decoder import source
from kernels.cpu.products.linear import call_linear
from kernels.cpu.products.round_rows import round_part
from kernels.cpu.row_ops import LOWEST, rms_norm
from kernels.cpu.shapes import Model
from kernels.cpu.simd import BYTES, LANES, load, load_one, num_above, within
from kernels.cpu.threads import meet, take
from kernels.jit import entry, kernel

PIECE = 16  # blocks of columns that a thread takes at a time
COUNTERS = 2  # parts of a count: rows, then columns


class Count(NamedTuple):
    """The input and output of a count of n rows, and its memory."""

    threads: int
    words: int  # address of what the threads meet in, with COUNTERS counters, zeroed
    states: int  # address of (n, hidden) float32, normed in place
    rounded: int  # address of room for these rows in blocks of int8, where the head reads those
    tokens: np.ndarray  # (n,) int64, columns of the head
    own: np.ndarray  # (n,) float32, the tokens' logits
    counts: np.ndarray  # (threads, n) int64, zeroed: what each thread found
    logits: np.ndarray  # (threads, n, PIECE * LANES) float32


@entry
def count_likelier(m: Model, c: Count, thread: int) -> None:
    n, width = len(c.tokens), PIECE * BYTES
    room = c.logits.ctypes.data + thread * n * width
    x, row = source(c.states, c.rounded, m.hidden, m.head_rounds)
    while True:
        i = take(c.words, 0, 1)
        if i >= n:
            break
        at = c.states + 4 * i * m.hidden
        rms_norm(at, m.final_norm, m.epsilon, m.hidden, at)
        round_part(m.head_rounds, c.states, c.rounded, i, m.hidden, 0, m.hidden)
        block = c.tokens[i] // LANES
        to = room - block * BYTES
        call_linear(m.head_kernel, 1, x + i * row, row, m.head, m.hidden, m.head_bias, block, block + 1, to, BYTES)
        c.own[i] = load_one(room + 4 * (c.tokens[i] % LANES))
    meet(c.words, c.threads)
    blocks = -(-m.vocab // LANES)
    while True:
        first = take(c.words, 1, PIECE)
        if first >= blocks:
            break
        end = min(first + PIECE, blocks)
        call_linear(m.head_kernel, n, x, row, m.head, m.hidden, m.head_bias, first, end, room - first * BYTES, width)
        size = min(LANES * end, m.vocab) - LANES * first
        for i in range(n):
            c.counts[thread, i] += above(room + i * width, size, c.own[i])
    meet(c.words, c.threads)


@kernel
def above(x: int, size: int, value: float) -> int:
    """Count those of `size` floats at x that are larger than a value. Reads whole blocks of 16."""
    count = 0
    for i in range(0, size, LANES):
        v = load(x + 4 * i)
        count += num_above(within(v, 0, size - i, LOWEST) if i + LANES > size else v, value)
    return count

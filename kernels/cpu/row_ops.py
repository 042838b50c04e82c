"""Compute on single rows between the products. Rows are float32, given by their addresses."""

import math

import numpy as np

from kernels.cpu.simd import (
    BYTES,
    LANES,
    add,
    div,
    exp,
    fma,
    larger,
    load,
    max_of,
    mul,
    places_of,
    splat,
    store,
    sub,
    sum_of,
    within,
)
from kernels.jit import kernel

ZERO, ONE, LOWEST = np.float32(0.0), np.float32(1.0), np.float32(-np.inf)


@kernel
def copy(of: int, to: int, size: int) -> None:
    for i in range(0, size, LANES):
        store(to + 4 * i, load(of + 4 * i))


@kernel
def add_to(x: int, y: int, size: int) -> None:
    """`size`: a multiple of 16."""
    for i in range(0, size, LANES):
        store(x + 4 * i, add(load(x + 4 * i), load(y + 4 * i)))


@kernel
def rms_norm(x: int, weight: int, epsilon: float, size: int, out: int) -> None:
    """Compute out = w x / sqrt(mean(x^2) + epsilon); `size` floats, a multiple of 16; out may be x."""
    total = splat(ZERO)
    for i in range(0, size, LANES):
        v = load(x + 4 * i)
        total = fma(v, v, total)
    mean = sum_of(total) / np.float32(size)
    scale = splat(ONE / np.float32(math.sqrt(mean + np.float32(epsilon))))
    for i in range(0, size, LANES):
        store(out + 4 * i, mul(load(weight + 4 * i), mul(load(x + 4 * i), scale)))


@kernel
def rotate(x: int, cos: int, sin: int, size: int) -> None:
    """Compute x cos + rotate_half(x) sin in place; `size` floats, a multiple of 32.

    rotate_half puts the second half, negated, before the first.
    """
    half = 2 * size  # bytes
    for i in range(0, half, BYTES):
        low, high = load(x + i), load(x + half + i)
        store(x + i, sub(mul(low, load(cos + i)), mul(high, load(sin + i))))
        store(x + half + i, add(mul(high, load(cos + half + i)), mul(low, load(sin + half + i))))


@kernel
def gate(x: int, out: int) -> None:
    """Compute out = silu(g) u for sixteen g at x and the sixteen u behind them."""
    g = load(x)
    store(out, mul(div(g, add(splat(ONE), exp(sub(splat(ZERO), g)))), load(x + BYTES)))


@kernel
def best(x: int, size: int) -> int:
    """Return the index of the largest of `size` floats, the first of equals; -1 if one is not finite."""
    top, sound = splat(LOWEST), splat(ZERO)
    for i in range(0, size, LANES):
        v = within(load(x + 4 * i), 0, size - i, LOWEST) if i + LANES > size else load(x + 4 * i)
        top = larger(v, top)
        sound = fma(splat(ZERO), load(x + 4 * i) if i + LANES <= size else splat(ZERO), sound)
    highest = max_of(top)
    if sum_of(sound) != ZERO:
        return -1
    return first_at(x, size, highest)


@kernel
def first_at(x: int, size: int, value: float) -> int:
    """Return the index of the first equal float, or -1. Reads whole blocks of 16."""
    for i in range(0, size, LANES):
        places = places_of(load(x + 4 * i), value)
        if places != 0:
            at = i
            while places & 1 == 0:
                places >>= 1
                at += 1
            return at if at < size else -1
    return -1

"""Choose by logits and noise, but draw noise only for tokens that can still win.

    token = argmax of z(x) + G(x),   LEAST <= G <= MOST,   as in `kernels.sampling.target_token`, its reference

G = -log(-log u), and u has 23 bits: a token whose z is more than MOST - LEAST below the largest never wins. Of the
others one reaches a score S only if e^(z - S) >= -log u >= 1 - u, which the integers of its noise tell without a
logarithm. Filters are thresholds of z, found without sorting.
"""

from math import exp, inf, log
from typing import NamedTuple

import numpy as np
import torch

from kernels.jit import entry, kernel
from kernels.sampling.gumbel_noise import GOLDEN, noise_key
from kernels.sampling.target_token import MIN_TEMPERATURE, Choice

LEAST, MOST = -log(24.0 * log(2.0)), 24.0 * log(2.0)
WINDOW = MOST - LEAST
FAR = 15.0  # logits below the largest: what is less likely has no part in the mass
NUCLEI = 3.0, 6.0, 9.0  # windows in which what top-p keeps is looked for first
NEAR = 3.0  # below the largest z: what is that near shows what the others must reach
SLACK = 1e-3  # for rounding, relative
_GOLDEN, _FIRST, _SECOND = np.uint32(GOLDEN), np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)
_16, _13, _9 = np.uint32(16), np.uint32(13), np.uint32(9)
_NONE = np.zeros(0, np.int64)


class Contenders(NamedTuple):
    ids: np.ndarray  # (n,) int64, ascending
    scores: np.ndarray  # (n,) float64, z with noise
    # The logarithm of the sum of e^(T score) over the kept tokens within FAR of the largest logit. It is computed for
    # the best two only; else it is -inf.
    log_mass: float


def target_token(logits: torch.Tensor, choice: Choice, position: int) -> int:
    """Choose one of logits (V,) float32 after bias, penalties and mask."""
    if choice.temperature == 0.0:
        return int(logits.argmax())
    found = contenders(logits, choice, position)
    return int(found.ids[found.scores.argmax()])


def contenders(
    logits: torch.Tensor, choice: Choice, position: int, tokens: torch.Tensor | None = None, best: int = 1
) -> Contenders:
    """Return those of logits (V,) float32 that filters keep, and that can have the best or the second best score.

    tokens: (V,) int64, what the logits are of; None: of 0 ... V - 1. best: 1, or 2.
    """
    x, (low, high) = logits.numpy(), noise_key(choice.seed, choice.choice, position)
    temperature = np.float32(max(choice.temperature, MIN_TEMPERATURE))
    min_p = float(np.log(np.float32(choice.min_p))) if choice.min_p > 0.0 else -inf
    filters = Filters(choice.top_k, choice.top_p, min_p)
    of, likeliest = _NONE if tokens is None else tokens.numpy(), int(x.argmax())
    noise = np.uint32(low), np.uint32(high)
    most, mass, whole = inf, 0.0, x[:0]
    if filters.top_p < 1.0:  # numpy computes many exponentials at a time
        whole = np.exp((x - x[likeliest]) / temperature)
        mass = float(whole.sum(dtype=np.float64))
        for size in NUCLEI if filters.top_k < 1 else ():
            if whole[whole >= exp(-size)].sum(dtype=np.float64) >= filters.top_p * mass:
                most = size  # what is kept is no further from the likeliest
                break
    ids, z = window(x, likeliest, temperature, filters, of, noise, most, best)
    masses = whole[ids] if len(whole) else whole
    return Contenders(*find(ids, z, masses, mass, temperature, filters, of, noise, best))


def warm_up() -> None:
    contenders(torch.zeros(2), Choice(1.0, 0.5, 1, 0.5, 0), 0)


class Filters(NamedTuple):
    top_k: int  # 0: all
    top_p: float  # 1.0: all
    min_p: float  # its logarithm; -inf: all


@entry
def window(
    x: np.ndarray,
    likeliest: int,
    temperature: np.float32,
    filters: Filters,
    tokens: np.ndarray,
    noise: tuple[np.uint32, np.uint32],
    most: float,
    best: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids, (n,) int64, and z, (n,) float32, of all that may be contenders, whatever filters keep.

    x: (V,) float32, the largest at `likeliest`; tokens: (V,) int64, or (0,) for all in order; most: below z of the
    likeliest, that filters keep.
    """
    size, top = WINDOW, float(x[likeliest])
    if best > 1:
        size = max(size, float(FAR / temperature))
    elif filters.top_p >= 1.0:  # what the likeliest reaches, all others must
        reached = -log(-log(1.0 - _rest(tokens[likeliest] if len(tokens) else likeliest, noise)))
        size = min(MOST - reached, -filters.min_p)
    size = min(size, most)
    size += SLACK * (size + abs(top) / float(temperature))
    return within(x, np.float32(top - temperature * size), temperature)


@entry
def find(
    ids: np.ndarray,
    z: np.ndarray,
    masses: np.ndarray,
    mass: float,
    temperature: np.float32,
    filters: Filters,
    tokens: np.ndarray,
    noise: tuple[np.uint32, np.uint32],
    best: int,
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the `Contenders` of a window.

    masses: (n,) float32, e^z over that of the likeliest, if top_p < 1, and `mass` of all tokens.
    """
    floor = -inf
    if 0 < filters.top_k < len(z):
        floor = floor_of(z, np.ones(len(z), np.float32), float(filters.top_k))
    if filters.top_p < 1.0:
        kept, weights = z[z >= floor], masses[z >= floor]
        if floor > -inf:
            mass = 0.0
            for i in range(len(weights)):
                mass += weights[i]
        floor = max(floor, floor_of(kept, weights, filters.top_p * mass))
    floor = max(floor, float(z.max() + np.float32(filters.min_p)))
    return able(ids, z, tokens, floor, noise, best, float(temperature))


@kernel
def two_best(
    x: np.ndarray,
    likeliest: int,
    mass: float,
    temperature: np.float32,
    filters: Filters,
    tokens: np.ndarray,
    noise: tuple[np.uint32, np.uint32],
) -> tuple[int, int, float, float]:
    """Return the ids of the best and the second best of x, (V,) float32, and their parts of the mass (`Contenders`).

    mass: of all, e^z over that of the likeliest; read if top_p < 1.
    """
    best = int(np.int64(2))  # a literal would be another type, for which both were compiled once more
    most = _nucleus(x, likeliest, mass, temperature, filters) if filters.top_p < 1.0 and filters.top_k < 1 else inf
    ids, z = window(x, likeliest, temperature, filters, tokens, noise, most, best)
    masses = np.exp(z - z.max()) if filters.top_p < 1.0 else z[:0]
    ids, scores, log_mass = find(ids, z, masses, mass, temperature, filters, tokens, noise, best)
    first, second = 0, -1
    for i in range(1, len(scores)):
        if scores[i] > scores[first]:
            first, second = i, first
        elif second < 0 or scores[i] > scores[second]:
            second = i
    chance = exp(float(temperature) * scores[first] - log_mass)
    if second < 0:
        return ids[first], ids[first], chance, 0.0
    return ids[first], ids[second], chance, exp(float(temperature) * scores[second] - log_mass)


@kernel
def _nucleus(x: np.ndarray, likeliest: int, mass: float, temperature: np.float32, filters: Filters) -> float:
    """Return one of NUCLEI that holds what top-p keeps, or inf."""
    for size in NUCLEI:
        inside, least = 0.0, x[likeliest] - temperature * np.float32(size)
        for i in range(len(x)):
            if x[i] >= least:
                inside += exp((x[i] - x[likeliest]) / temperature)
        if inside >= filters.top_p * mass:
            return size
    return inf


@kernel
def key_of(low_seed: np.uint32, high_seed: np.uint32, choice: np.uint32, position: int) -> tuple[np.uint32, np.uint32]:
    """Compute `gumbel_noise.noise_key`."""
    low, high = _GOLDEN, _FIRST
    for word in (low_seed, high_seed, choice, np.uint32(position)):
        low = _mix(low ^ word)
        high = _mix(np.uint32(high + low + word))
    return np.uint32(low), np.uint32(high)


@kernel
def within(x: np.ndarray, least: np.float32, temperature: np.float32) -> tuple[np.ndarray, np.ndarray]:
    """Return where x, (V,) float32, is at least so much, (n,) int64, and there x over the temperature, (n,) float32."""
    count = 0
    for i in range(len(x)):
        count += x[i] >= least
    ids, z = np.empty(count, np.int64), np.empty(count, np.float32)
    at, block = 0, 64
    for first in range(0, len(x), block):
        end = min(first + block, len(x))
        inside = 0
        for i in range(first, end):
            inside += x[i] >= least
        if inside:
            for i in range(first, end):
                if x[i] >= least:
                    ids[at], z[at] = i, x[i] / temperature
                    at += 1
    return ids, z


@kernel
def floor_of(z: np.ndarray, weights: np.ndarray, needed: float) -> float:
    """Return the largest f for which all z >= f weigh at least so much, -inf if there is none.

    z: (n,) float32; weights: (n,) float32.
    """
    top, size, inside = z.max(), NEAR / 2.0, 0.0
    while inside < needed and size < WINDOW:  # mostly the answer is among the few largest
        size *= 2.0
        inside = 0.0
        for i in range(len(z)):
            inside += weights[i] if z[i] >= top - size else 0.0
    own, weight = (z[z >= top - size], weights[z >= top - size]) if inside >= needed else (z.copy(), weights.copy())
    count, above = len(own), 0.0
    while count > 0:
        a, b, c = own[0], own[count // 2], own[count - 1]
        pivot = max(min(a, b), min(max(a, b), c))
        more, same = 0.0, 0.0
        for i in range(count):
            if own[i] > pivot:
                more += weight[i]
            elif own[i] == pivot:
                same += weight[i]
        is_above = above + more >= needed
        if not is_above and above + more + same >= needed:
            return float(pivot)
        if not is_above:
            above += more + same
        left = 0
        for i in range(count):
            if own[i] > pivot if is_above else own[i] < pivot:
                own[left], weight[left] = own[i], weight[i]
                left += 1
        count = left
    return -inf


@kernel
def able(
    ids: np.ndarray,
    z: np.ndarray,
    tokens: np.ndarray,
    floor: float,
    noise: tuple[np.uint32, np.uint32],
    best: int,
    temperature: float,
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return those at the floor or above that can have the best score, or the second best, with their scores.

    ids: (m,) int64; z: (m,) float32; tokens: (V,) int64, of the ids, or (0,).
    """
    top = z.max()
    first, second = -inf, -inf  # scores
    rest, mass = np.empty(len(ids)), 0.0
    for i in range(len(ids)):
        if z[i] >= floor:
            rest[i] = _rest(tokens[ids[i]] if len(tokens) else ids[i], noise)
            if best > 1 or z[i] >= top - NEAR:
                score = z[i] - log(-log(1.0 - rest[i]))
                mass += exp(temperature * (score - top)) if best > 1 else 0.0
                if score > first:
                    first, second = score, first
                elif score > second:
                    second = score
    reach = first if best == 1 else second
    places, count = np.empty(len(ids), np.int64), 0
    for i in range(len(ids)):
        if z[i] >= floor:
            lead = z[i] - reach
            if lead >= -1.0 or (lead > -MOST - 1.0 and rest[i] <= (1.0 + SLACK) * exp(lead)):
                places[count] = i
                count += 1
    kept = places[:count]
    scores = np.empty(count)
    for n in range(count):
        scores[n] = z[kept[n]] - log(-log(1.0 - rest[kept[n]]))
    return ids[kept], scores, temperature * top + log(mass) if mass > 0.0 else -inf


@kernel
def _rest(token: int, noise: tuple[np.uint32, np.uint32]) -> float:
    """Return 1 - u."""
    low, high = noise
    h = _mix(np.uint32(np.uint32(token) * _GOLDEN + low))
    h = _mix(np.uint32((h ^ high) + _GOLDEN))
    return (2.0**23 - 0.5 - np.float64(h >> _9)) * 2.0**-23


@kernel
def _mix(h: np.uint32) -> np.uint32:
    h = np.uint32((h ^ (h >> _16)) * _FIRST)
    h = np.uint32((h ^ (h >> _13)) * _SECOND)
    return h ^ (h >> _16)

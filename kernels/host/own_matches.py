"""Find an earlier place where the end of a text occurs, and propose the tokens after it.

The match is the last place after the last 8 tokens, else after the last 4, else after the last 2. Its chance, of this
text's matches of that length, is

    chance = (followed + PRIOR_WEIGHT * prior) / (seen + PRIOR_WEIGHT)

with the rate over all texts as `prior`, whose own prior is FOLLOWED.
"""

from typing import NamedTuple

import numpy as np

from kernels.jit import entry, kernel

SIZES = (8, 4, 2)  # of n-grams, longest first
LONGEST = 24  # longer matches count as this long
PRIOR_WEIGHT = 6.0  # observations the wider rate counts for in the narrower one
WINDOW = 512.0  # observations after which the old ones fade
_MEASURED = [0.0, 0.2, 0.52, 0.62, 0.66, 0.72, 0.76, 0.8, 0.82, 0.84, 0.86, 0.87, 0.88, 0.89, 0.9, 0.91]
_MORE = [min(0.98, 0.91 + 0.008 * more) for more in range(LONGEST + 1 - len(_MEASURED))]
FOLLOWED = np.array(_MEASURED + _MORE)  # by length of the match
_LONG, _MIDDLE, _SHORT = SIZES


class MatchedTexts(NamedTuple):
    tokens: np.ndarray  # (R, capacity) int32
    ends: np.ndarray  # (R, 3) int64: a text's length, where its match goes on, and the match's length or 0
    rates: np.ndarray  # (R, 2, LONGEST + 1) float64: by the match's length, how often one was followed, and seen


class Copies(NamedTuple):
    tokens: np.ndarray  # (N,) int64
    chances: np.ndarray  # (N,) float64
    ends: np.ndarray  # (B,) int64


@entry
def copy_matches(
    texts: MatchedTexts, wider: np.ndarray, read: np.ndarray, fresh: np.ndarray, asked: np.ndarray, out: Copies
) -> None:
    """Append new tokens to some texts, then continue some from their matches.

    wider: (2, LONGEST + 1) float64, the rates of all texts; read: (A, 2) int64, a text's row and its number of `fresh`
    tokens; asked: (B, 2) int64, a row and its number of tokens to propose.
    """
    begun = 0
    for i in range(len(read)):
        row, count = read[i, 0], read[i, 1]
        take(texts.tokens[row], texts.ends[row], texts.rates[row], wider, fresh[begun : begun + count])
        begun += count
    written = 0
    for i in range(len(asked)):
        row, count = asked[i, 0], asked[i, 1]
        end, place, length = texts.ends[row, 0], texts.ends[row, 1], texts.ends[row, 2]
        for step in range(count if length else 0):
            out.tokens[written] = texts.tokens[row, place + step % (end - place)]
            size = min(length + step, LONGEST)
            out.chances[written] = rate(texts.rates[row], size, rate(wider, size, FOLLOWED[size]))
            written += 1
        out.ends[i] = written


@kernel
def take(tokens: np.ndarray, ends: np.ndarray, rates: np.ndarray, wider: np.ndarray, fresh: np.ndarray) -> None:
    """Count up to the first token that differs from the match, and find the new match."""
    begun, place, length = ends[0], ends[1], ends[2]
    end = begun + len(fresh)
    tokens[begun:end] = fresh
    if length:
        for i in range(begun, end):
            is_followed = tokens[place] == tokens[i]
            count(rates, min(length, LONGEST), is_followed)
            count(wider, min(length, LONGEST), is_followed)
            if not is_followed:
                break
            place, length = place + 1, length + 1
    ends[0] = end
    ends[1], ends[2] = find_match(tokens, end)


@kernel
def find_match(tokens: np.ndarray, end: int) -> tuple[int, int]:
    if end <= _SHORT:
        return 0, 0
    last, before = tokens[end - 1], tokens[end - 2]
    best, best_length = 0, 0
    for place in range(end - 1, _SHORT - 1, -1):
        if tokens[place - 1] != last or tokens[place - 2] != before:
            continue
        length = _SHORT
        while length < min(place, LONGEST) and tokens[place - 1 - length] == tokens[end - 1 - length]:
            length += 1
        if length >= _LONG:
            return place, length
        if best_length == 0 or (best_length < _MIDDLE <= length):
            best, best_length = place, length
    return best, best_length


@kernel
def rate(rates: np.ndarray, size: int, prior: float) -> float:
    return float((rates[0, size] + PRIOR_WEIGHT * prior) / (rates[1, size] + PRIOR_WEIGHT))


@kernel
def count(rates: np.ndarray, size: int, is_followed: bool) -> None:
    if rates[1, size] >= WINDOW:
        rates[0, size] /= 2.0
        rates[1, size] /= 2.0
    rates[0, size] += 1.0 if is_followed else 0.0
    rates[1, size] += 1.0

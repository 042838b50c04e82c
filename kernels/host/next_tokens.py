"""Find the next tokens of a context in n-gram tables and a request's own text (`kernels.host.phrase_tree`)."""

from typing import NamedTuple

import numpy as np

from kernels.host.phrase_tables import (
    CONSIDERED,
    DOUBT,
    KEPT_SHIFT,
    LONGEST,
    MOST_SEEN,
    MULTIPLIER,
    SEEN_SHIFT,
    SIZE_BITS,
    WHICH,
    PhraseTables,
)
from kernels.jit import kernel

OWN = 10.0
HERE = 2.0
MAX_CHILDREN = 4  # of a node
LITTLE = 0.02  # weight left below which shorter n-grams are not looked up
MAX_PLACES = 32  # of a token in the own text: the latest

_SIZES, _WEIGHTS = np.array([*DOUBT]), np.array([*DOUBT.values()])
_MOST = len(DOUBT) * CONSIDERED + MAX_PLACES  # next tokens after one context
_MULTIPLIER, _ONE, _WORD = np.uint64(MULTIPLIER), np.uint64(1), np.int64(63)
_SIZE_SHIFT, _HALF = np.uint64(64 - SIZE_BITS), np.uint64(32)


class OwnText(NamedTuple):
    tokens: np.ndarray  # (capacity,) int32
    seen: np.ndarray  # (V // 64 + 1,) uint64: a bit for each token of the vocabulary, set where the text has it
    start: int  # tokens before it lend context only
    end: int


class Found(NamedTuple):
    tokens: np.ndarray  # (_MOST,) int64: next tokens
    chances: np.ndarray  # (_MOST,) float64: theirs
    grams: np.ndarray  # (sizes,) int64: what the tables say of the grams that end the context; 0 of an unknown one
    places: np.ndarray  # (MAX_PLACES,) int64: where the own text goes on after the context's last token
    lengths: np.ndarray  # (MAX_PLACES,) int64: how many of the context's last tokens match there


@kernel
def room_for_next() -> Found:
    return Found(
        np.empty(_MOST, np.int64),
        np.empty(_MOST),
        np.empty(len(_SIZES), np.int64),
        np.empty(MAX_PLACES, np.int64),
        np.empty(MAX_PLACES, np.int64),
    )


@kernel
def next_tokens(tables: PhraseTables, own: OwnText, path: np.ndarray, known: int, out: Found) -> int:
    """Write the tokens after a path with their chances, likeliest first, and return their number.

    path: (LONGEST,) int64, its last `known` tokens count.
    """
    found, chances, grams, places, lengths = out.tokens, out.chances, out.grams, out.places, out.lengths
    find_grams(tables, path, known, grams)
    sightings = own_sightings(own, path, known, places, lengths)
    count, left = 0, 1.0
    for at in range(len(_SIZES)):
        size, doubt = _SIZES[at], _WEIGHTS[at]
        if size > known:
            continue
        gram = grams[at]
        here = 0
        for i in range(sightings):
            here += lengths[i] >= size
        total = gram >> SEEN_SHIFT & MOST_SEEN
        whole = total + OWN * here
        if whole == 0.0:
            continue
        one = left / (whole + doubt)
        kept, which = gram >> KEPT_SHIFT, gram & WHICH
        if kept == 1:
            count = add_chance(found, chances, count, which, one * total)
        else:
            for row in range(which, which + kept):
                token, seen = tables.following[row, 0], tables.following[row, 1]
                count = add_chance(found, chances, count, token, one * seen)
        for i in range(sightings):
            if lengths[i] >= size:
                count = add_chance(found, chances, count, own.tokens[places[i]], one * OWN)
        left *= doubt / (whole + doubt)
        if left < LITTLE:
            break
    return likeliest(own, found, chances, count)


@kernel
def find_grams(tables: PhraseTables, path: np.ndarray, known: int, grams: np.ndarray) -> None:
    """Write the tables' values of the grams of each size that end a path; 0 of an unknown one.

    A missing gram ends no longer known one: the shortest is looked up first.
    """
    grams[:] = 0
    value, size = np.uint64(0), 0
    for at in range(len(_SIZES) - 1, -1, -1):
        if _SIZES[at] > known:
            return
        while size < _SIZES[at]:
            size += 1
            value = (value + np.uint64(path[LONGEST - size]) + _ONE) * _MULTIPLIER
        grams[at] = find(tables, at, value)
        if grams[at] == 0:
            return


@kernel
def own_sightings(own: OwnText, path: np.ndarray, known: int, places: np.ndarray, lengths: np.ndarray) -> int:
    """Write where the own text goes on after the path's last token, and how many of its last tokens match there.

    places, lengths: (MAX_PLACES,) int64, of the latest places, the earliest first; returns their number.
    """
    if known == 0:
        return 0
    count, last = 0, path[LONGEST - 1]
    for i in range(own.end - 2, own.start - 1, -1):
        if own.tokens[i] == last:
            length = 1
            while length < min(known, i + 1) and own.tokens[i - length] == path[LONGEST - 1 - length]:
                length += 1
            places[count], lengths[count] = i + 1, length
            count += 1
            if count == MAX_PLACES:
                break
    for i in range(count // 2):
        j = count - 1 - i
        places[i], places[j] = places[j], places[i]
        lengths[i], lengths[j] = lengths[j], lengths[i]
    return count


@kernel
def find(tables: PhraseTables, at: int, hashed: np.uint64) -> int:
    key = hashed >> np.uint64(tables.bits) | np.uint64(at) << _SIZE_SHIFT
    slot = np.int64((hashed >> _HALF) * np.uint64(tables.homes) >> _HALF)
    while tables.slots[slot, 1] != 0:
        if tables.slots[slot, 0] == key:
            return int(np.int64(tables.slots[slot, 1]))
        slot += 1
    return 0


@kernel
def add_chance(found: np.ndarray, chances: np.ndarray, count: int, token: int, chance: float) -> int:
    for i in range(count):
        if found[i] == token:
            chances[i] += chance
            return count
    found[count], chances[count] = token, chance
    return count + 1


@kernel
def likeliest(own: OwnText, found: np.ndarray, chances: np.ndarray, count: int) -> int:
    """Raise tokens of the own text, keep the sum; return the number kept."""
    whole, raised = 0.0, 0.0
    for i in range(count):
        whole += chances[i]
        token = found[i]
        if 0 <= token < 64 * len(own.seen) and own.seen[token >> 6] >> np.uint64(token & _WORD) & _ONE:
            chances[i] *= HERE
        raised += chances[i]
    most = min(count, MAX_CHILDREN)
    for i in range(most):
        best = i
        for j in range(i + 1, count):
            if chances[j] > chances[best]:
                best = j
        token, chance = found[best], chances[best]
        for j in range(best, i, -1):  # the others keep their order: of equals the first found is first
            found[j], chances[j] = found[j - 1], chances[j - 1]
        found[i], chances[i] = token, chance
    for i in range(most):
        chances[i] *= whole / raised
    return most

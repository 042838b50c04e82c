"""Count, in a store of text, the tokens after each n-gram: the tables of `kernels.host.phrase_tree`.

A gram's hash is h = (h + token + 1) * MULTIPLIER, from its last token backwards.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

DOUBT = {8: 2.0, 5: 4.0, 3: 6.0, 2: 8.0, 1: 10.0}  # n-gram size, longest first -> sightings that shorter ones count for
LONGEST = max(DOUBT)
MADE_BY = Path(__file__)  # tables that are kept are of this very code
CONSIDERED = 8  # the most frequent next tokens of an n-gram
SIZE_BITS = 4  # of a key, for the size
KEPT_SHIFT, SEEN_SHIFT = 59, 32  # in a slot's number
MOST_SEEN, WHICH = 2**27 - 1, 2**32 - 1
MULTIPLIER = 0x9E3779B97F4A7C15  # of the rolling hash; odd, so that no token is lost

_HALF = np.uint64(32)


class PhraseTables(NamedTuple):
    """Next tokens of n-grams of all sizes in DOUBT, as a hash table.

    A slot is a gram's key (the place of its size in DOUBT, then its hash without the low `bits` bits) and one number:
    from KEPT_SHIFT on the number of next tokens, below it the gram's count, in the bits of WHICH the only one, or the
    row of the first. A hash's home is its high half's share of 2**32 of all homes; a gram stands there or behind,
    before the next empty slot.
    """

    slots: np.ndarray  # (S, 2) uint64, the last one empty; an empty one's second number is 0
    following: np.ndarray  # (R, 2) int32: a next token and how often it was seen, the most frequent of a gram first
    homes: int
    bits: int  # that a token's id takes, and at least those that a size takes


def phrase_tables(ids: np.ndarray, vocab_size: int) -> PhraseTables:
    """Make the tables of a store (N,) int64, texts parted by ids from `vocab_size` on."""
    bits = max(SIZE_BITS, int(vocab_size).bit_length())
    of_sizes = [_table(ids, size, vocab_size, bits) for size in DOUBT]
    grams, kinds, totals, tokens, counts = (np.concatenate(parts) for parts in zip(*of_sizes, strict=True))
    sizes = np.repeat(np.arange(len(of_sizes)), [len(one[0]) for one in of_sizes])
    first = np.cumsum(kinds) - kinds
    place = np.arange(len(tokens)) - np.repeat(first, kinds)  # of a next token among those of its gram
    is_row = (place < CONSIDERED) & np.repeat(kinds > 1, kinds)
    kept = np.minimum(kinds, CONSIDERED)
    rows = np.where(kinds > 1, kept, 0)
    which = np.where(kinds > 1, np.cumsum(rows) - rows, tokens[first])
    numbers = kept << KEPT_SHIFT | np.minimum(totals, MOST_SEEN) << SEEN_SHIFT | which
    homes = 2 * len(grams) + 1
    slots = _slots(grams << np.uint64(bits), sizes, numbers, homes, bits)
    return PhraseTables(slots, np.stack([tokens, counts], axis=1)[is_row], homes, bits)


def write_tables(tables: PhraseTables, folder: Path) -> None:
    for name, values in tables._asdict().items():
        np.save(folder / f"{name}.npy", values)


def read_tables(folder: Path) -> PhraseTables:
    """Map tables into memory. Raises OSError, EOFError, and ValueError where compiled code would read out of bounds."""
    found: dict[str, Any] = {
        name: np.asarray(np.load(folder / f"{name}.npy", mmap_mode="c")) for name in PhraseTables._fields
    }
    tables = PhraseTables(**found)._replace(homes=int(found["homes"]), bits=int(found["bits"]))
    slots, following = tables.slots, tables.following
    is_whole = (
        SIZE_BITS <= tables.bits <= 32
        and slots.shape[1:] == following.shape[1:] == (2,)
        and 0 < tables.homes < min(len(slots), 2**32)
        and slots[-1, 1] == 0
        and _last_row(slots) <= len(following)
    )
    if not is_whole:
        raise ValueError("these are no whole tables")
    return tables


def _slots(hashes: np.ndarray, sizes: np.ndarray, numbers: np.ndarray, homes: int, bits: int) -> np.ndarray:
    keys = hashes >> np.uint64(bits) | sizes.astype(np.uint64) << np.uint64(64 - SIZE_BITS)
    home = ((hashes >> _HALF) * np.uint64(homes) >> _HALF).astype(np.int64)
    order, at = np.argsort(home, kind="stable"), np.arange(len(home))
    places = np.maximum.accumulate(home[order] - at) + at
    slots = np.zeros((max([homes, *(places[-1:] + 1)]) + 1, 2), np.uint64)
    slots[places, 0], slots[places, 1] = keys[order], numbers.astype(np.uint64)[order]
    return slots


def _last_row(slots: np.ndarray) -> int:
    numbers = slots[:, 1].astype(np.int64)
    kept, which = numbers >> KEPT_SHIFT, numbers & WHICH
    return int(np.max(np.where(kept > 1, kept + which, 0)))


def _table(ids: np.ndarray, size: int, vocab_size: int, token_bits: int) -> tuple[np.ndarray, ...]:
    """Count the next tokens of each n-gram, within one text.

    Returns hashes, numbers of next tokens and of sightings, all (G,); next tokens and their counts, the most frequent
    of each gram first, both (R,).
    """
    count = max(0, len(ids) - size)
    grams = np.zeros(count, np.uint64)
    is_text = np.ones(count, bool)
    for back in range(1, size + 1):  # the token `back` places before the one that follows
        token = ids[size - back : size - back + count]
        grams = (grams + token.astype(np.uint64) + np.uint64(1)) * np.uint64(MULTIPLIER)
        is_text &= token < vocab_size
    following = ids[size : size + count]
    is_text &= following < vocab_size
    # The token takes the place of the hash's low bits: one sort of plain numbers instead of one by two keys.
    bits = np.uint64(token_bits)
    pairs = np.sort(grams[is_text] >> bits << bits | following[is_text].astype(np.uint64))
    starts = np.flatnonzero(np.append(True, pairs[1:] != pairs[:-1])[: len(pairs)])
    counts = np.diff(np.append(starts, len(pairs)))
    grams, following = pairs[starts] >> bits, pairs[starts] & ((np.uint64(1) << bits) - np.uint64(1))
    first = np.append(np.flatnonzero(np.append(True, grams[1:] != grams[:-1])[: len(grams)]), len(grams))
    several = np.flatnonzero(np.repeat(np.diff(first) > 1, np.diff(first)))  # most n-grams have one next token
    order = several[np.lexsort((following[several], -counts[several], grams[several]))]
    following[several], counts[several] = following[order], counts[order]
    totals = np.add.reduceat(counts, first[:-1]) if len(counts) else counts
    return grams[first[:-1]], np.diff(first), totals, following.astype(np.int32), counts.astype(np.int32)

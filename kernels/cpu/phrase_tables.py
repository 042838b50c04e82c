"""Count, in a store of text, what followed each n-gram: the tables of `kernels.cpu.phrase_tree`.

A gram's hash is h = (h + token + 1) * MULTIPLIER, from its last token backwards.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

DOUBT = {8: 2.0, 5: 4.0, 3: 6.0, 2: 8.0, 1: 10.0}  # n-gram size, longest first -> sightings that shorter ones count for
LONGEST = max(DOUBT)
MADE_BY = Path(__file__)  # tables that are kept are of this very code
MULTIPLIER = 0x9E3779B97F4A7C15  # of the rolling hash; odd, so that no token is lost


class PhraseTables(NamedTuple):
    """Next tokens of n-grams of all sizes in DOUBT; gram i's are rows `sightings[i, 0] ... sightings[i + 1, 0] - 1`,
    the most frequent first. What is read together lies together: memory takes most of a look-up's time."""

    buckets: np.ndarray  # (sizes, B + 1) int64, sizes as in DOUBT: where grams of the same highest bits begin
    shift: int  # that leaves a gram's highest bits, so that a look-up touches little memory that is not cached
    grams: np.ndarray  # (G,) uint64 hashes without the bits that a token's id takes, ascending by size
    sightings: np.ndarray  # (G + 1, 2) int64: the first row, and how often any next token was seen
    following: np.ndarray  # (R, 2) int32: a next token, and how often it was seen
    bits: int  # that a token's id takes


def phrase_tables(ids: np.ndarray, vocab_size: int) -> PhraseTables:
    """Make the tables of a store (N,) int64, texts parted by ids from `vocab_size` on."""
    bits = int(vocab_size).bit_length()
    of_sizes = [_table(ids, size, vocab_size, bits) for size in DOUBT]
    grams, sightings, totals, tokens, counts = (np.concatenate(parts) for parts in zip(*of_sizes, strict=True))
    high = max(1, max(len(one[0]) for one in of_sizes).bit_length() - 3)  # about eight grams a bucket
    shift = 64 - bits - high
    starts = np.arange(2**high + 1).astype(np.uint64) << np.uint64(shift)
    begin = np.cumsum([0, *(len(one[0]) for one in of_sizes)])
    buckets = np.stack([at + one[0].searchsorted(starts) for at, one in zip(begin, of_sizes, strict=False)])
    rows = np.stack([np.append(0, np.cumsum(sightings)), np.append(totals, 0)], axis=1)
    return PhraseTables(buckets, shift, grams, rows, np.stack([tokens, counts], axis=1), bits)


def write_tables(tables: PhraseTables, folder: Path) -> None:
    """Write tables to a folder, a file each. Raises OSError."""
    for name, values in tables._asdict().items():
        np.save(folder / f"{name}.npy", values)


def read_tables(folder: Path) -> PhraseTables:
    """Map tables that `write_tables` wrote into memory.

    Raises OSError, EOFError, and ValueError where compiled code would read beyond them.
    """
    found: dict[str, Any] = {
        name: np.asarray(np.load(folder / f"{name}.npy", mmap_mode="c")) for name in PhraseTables._fields
    }
    tables = PhraseTables(**found)._replace(shift=int(found["shift"]), bits=int(found["bits"]))
    buckets, grams = tables.buckets, len(tables.grams)
    has_rows = tables.sightings.shape == (grams + 1, 2) and tables.following.shape[1:] == (2,)
    first = tables.sightings[:, 0] if has_rows else np.zeros(0)
    is_whole = (
        0 <= tables.shift < 64
        and buckets.shape == (len(DOUBT), 2 ** max(0, 64 - tables.bits - tables.shift) + 1)
        and has_rows
        and len(tables.following) == first[-1]
        and first[0] == buckets[0, 0] == 0
        and buckets.max() <= grams
        and bool((np.diff(first) >= 0).all())
        and bool((np.diff(buckets) >= 0).all())
    )
    if not is_whole:
        raise ValueError("these are no whole tables")
    return tables


def _table(ids: np.ndarray, size: int, vocab_size: int, token_bits: int) -> tuple[np.ndarray, ...]:
    """Count the next tokens of each n-gram that lies, with its next token, within one text.

    Returns the grams' hashes, the number of each one's next tokens and of their sightings, all (G,);
    next tokens and their counts, the most frequent of each gram first, both (R,).
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

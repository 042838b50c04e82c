"""Guess from a shipped store of the target's own text: what followed the same few tokens there comes next.

Retrieval from a datastore (REST, He et al. 2023, arXiv:2311.08252), as counts of next tokens by n-gram: about a
quarter of a millisecond a round and no model. It is the same for everybody and learns nothing, so tenants share it.

The store is tokens alone (`tokens.npy`, texts parted by one id beyond the vocabulary); the tables are made from it at
load, a second for a million tokens. Sizes 8 to 2: the longest that is known speaks. A token that followed c times out
of n is believed c / (n + DOUBT): one sighting after eight tokens says more than one after two.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from app.errors import ModelRefused
from app.messages import Draft
from app.stages.draft.grow import Gram, grown
from app.stages.draft.protocol import Context

DOUBT = {8: 0.15, 6: 0.3, 4: 0.8, 3: 1.5, 2: 2.5}  # n-gram size, longest first -> sightings' worth of doubt
LONGEST = max(DOUBT)
MAX_CHILDREN = 3
MULTIPLIER = 0x9E3779B97F4A7C15  # of the rolling hash; odd, so that no token is lost
MASK = 2**64 - 1
FILE = "tokens.npy"


class _Table(NamedTuple):
    """Next tokens of one n-gram size: those of gram i stand at first[i] ... first[i + 1], the most frequent first."""

    grams: np.ndarray  # (G,) uint64 hashes, ascending
    first: np.ndarray  # (G + 1,) int64
    tokens: np.ndarray  # (R,) int32
    counts: np.ndarray  # (R,) int32
    totals: np.ndarray  # (G,) int64


class Phrases:
    """Drafter over a fixed store of text."""

    name = "phrases"

    def __init__(self, store: np.ndarray, vocab_size: int) -> None:
        """`store`: token ids (N,), texts parted by ids from `vocab_size` on."""
        ids = store.astype(np.int64)
        self._tables = {size: _table(ids, size, vocab_size) for size in DOUBT}

    def draft(self, contexts: Sequence[Context]) -> list[Draft]:
        drafts = (
            grown(self.name, context, self._children, LONGEST) for context in contexts if context.max_draft_tokens > 0
        )
        return [draft for draft in drafts if draft is not None]

    def observe(self, context: Context) -> None:
        """Nothing to learn: the store stands."""

    def forget(self, request_id: str) -> None:
        """Nothing is kept of a request."""

    def _children(self, context: Gram) -> list[tuple[int, float]]:
        """The likeliest next tokens after the longest known end of `context`."""
        hashes = _hashes(context)
        for size, doubt in DOUBT.items():
            if len(context) < size:
                continue
            table, gram = self._tables[size], np.uint64(hashes[size])
            i = int(table.grams.searchsorted(gram))
            if i < len(table.grams) and table.grams[i] == gram:
                first = int(table.first[i])
                last = min(int(table.first[i + 1]), first + MAX_CHILDREN)
                whole = float(table.totals[i]) + doubt
                tokens, counts = table.tokens[first:last].tolist(), table.counts[first:last].tolist()
                return [(token, count / whole) for token, count in zip(tokens, counts, strict=True)]
        return []


def load_phrases(folder: Path, vocab_size: int) -> Phrases:
    """The store in a drafter's folder. Raises ModelRefused."""
    try:
        store = np.load(folder / FILE, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ModelRefused(f"{folder / FILE} cannot be read: {error}") from None
    if store.ndim != 1 or store.dtype.kind != "u":
        raise ModelRefused(f"{folder / FILE} is no list of token ids")
    return Phrases(store, vocab_size)


def _hashes(context: Gram) -> dict[int, int]:
    """Of the last 2, 3, ... tokens: h = (h + token + 1) * MULTIPLIER, from the last token backwards."""
    found, value = {}, 0
    for size, token in enumerate(reversed(context), start=1):
        value = (value + token + 1) * MULTIPLIER & MASK
        found[size] = value
    return found


def _table(ids: np.ndarray, size: int, vocab_size: int) -> _Table:
    """Count what follows each n-gram that lies, with what follows, within one text."""
    count = max(0, len(ids) - size)
    grams = np.zeros(count, np.uint64)
    is_text = np.ones(count, bool)
    for back in range(1, size + 1):  # the token `back` places before the one that follows
        token = ids[size - back : size - back + count]
        grams = (grams + token.astype(np.uint64) + np.uint64(1)) * np.uint64(MULTIPLIER)
        is_text &= token < vocab_size
    following = ids[size : size + count]
    is_text &= following < vocab_size
    grams, following = grams[is_text], following[is_text]
    order = np.lexsort((following, grams))
    grams, following = grams[order], following[order]
    is_new = np.ones(len(grams), bool)
    is_new[1:] = (grams[1:] != grams[:-1]) | (following[1:] != following[:-1])
    starts = np.flatnonzero(is_new)
    counts = np.diff(np.append(starts, len(grams)))
    grams, following = grams[starts], following[starts]
    order = np.lexsort((following, -counts, grams))
    grams, following, counts = grams[order], following[order], counts[order]
    is_first = np.ones(len(grams), bool)
    is_first[1:] = grams[1:] != grams[:-1]
    first = np.append(np.flatnonzero(is_first), len(grams))
    totals = np.add.reduceat(counts, first[:-1]) if len(counts) else counts
    return _Table(grams[first[:-1]], first, following.astype(np.int32), counts.astype(np.int32), totals)

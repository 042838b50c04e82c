"""Guess from a store of the target's own text, and from the request's: the tokens that followed the same few before.

Retrieval from a store (REST, He et al. 2023, arXiv:2311.08252), as an interpolated n-gram model with a cache (Kuhn and
De Mori, 1990): no model, about a fifth of a millisecond a round. After the last tokens c, longest n-gram first,

    p_n(t) = (count_n(t) + DOUBT[n] p_(n-1)(t)) / (total_n + DOUBT[n])

where a sighting in the request's own text counts for OWN ones in the store, p_0 is nothing, and
tokens that stand in the request already are HERE times as likely as they would be. The store is
the same for all requests and learns nothing, and a request's own index serves that one alone, so
tenants share nothing (design D9).

The store is tokens alone (`tokens.npy`, texts parted by one id beyond the vocabulary); the tables are made from it at
load, half a second for a million tokens. Sizes and weights are those that did best on answers to prompts of
`training.prompts.draw` that are not in the store (docs/decisions/0009).
"""

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from app.errors import ModelRefused
from app.messages import Draft
from app.stages.draft.ngram_tree import Gram, grown
from app.stages.draft.protocol import Context

DOUBT = {8: 2.0, 5: 4.0, 3: 6.0, 2: 8.0, 1: 10.0}  # n-gram size, longest first -> sightings that shorter ones count for
LONGEST = max(DOUBT)
OWN = 10.0
HERE = 2.0
MAX_CHILDREN = 4
CONSIDERED = 8  # the most frequent next tokens of an n-gram in the store
LITTLE = 0.02  # weight left below which shorter n-grams are not looked up
MAX_PLACES = 32  # of a token in a request: the latest
MAX_REQUESTS = 512
MAX_TOKENS = 4096  # of a request that are looked at: the last when it is first seen, and what comes
MULTIPLIER = 0x9E3779B97F4A7C15  # of the rolling hash; odd, so that no token is lost
MASK = 2**64 - 1
FILE = "tokens.npy"


class _Table(NamedTuple):
    """Next tokens of one n-gram size: those of gram i stand at first[i] ... first[i + 1], the most frequent first."""

    grams: np.ndarray  # (G,) uint64 hashes without the bits that a token's id takes, ascending
    first: np.ndarray  # (G + 1,) int64
    tokens: np.ndarray  # (R,) int32
    counts: np.ndarray  # (R,) int32
    totals: np.ndarray  # (G,) int64

    def after(self, gram: int) -> tuple[list[int], list[int], int]:
        """(tokens, counts, total) after the n-gram of this hash; only the most frequent tokens."""
        key = np.uint64(gram)
        i = int(self.grams.searchsorted(key))
        if i == len(self.grams) or self.grams[i] != key:
            return [], [], 0
        first = int(self.first[i])
        last = min(int(self.first[i + 1]), first + CONSIDERED)
        return self.tokens[first:last].tolist(), self.counts[first:last].tolist(), int(self.totals[i])


class Phrases:
    """Drafter over a fixed store of text and each request's own."""

    name = "phrases"

    def __init__(self, store: np.ndarray, vocab_size: int) -> None:
        """`store`: token ids (N,), texts parted by ids from `vocab_size` on."""
        ids = store.astype(np.int64)
        self._bits = _bits(vocab_size)
        self._tables = {size: _table(ids, size, vocab_size) for size in DOUBT}
        self._own_text: OrderedDict[str, _OwnText] = OrderedDict()  # by request, the one drafted for last at the end

    def draft(self, contexts: Sequence[Context]) -> list[Draft]:
        wanted = [context for context in contexts if context.max_draft_tokens > 0]
        drafts = (grown(self.name, one, partial(self._children, self._own(one)), LONGEST) for one in wanted)
        return [draft for draft in drafts if draft is not None]

    def update(self, context: Context) -> None:
        """Learn nothing for other requests; the request's own tokens are read when it is drafted for."""

    def remove(self, request_id: str) -> None:
        self._own_text.pop(request_id, None)

    def _own(self, context: Context) -> "_OwnText":
        own = self._own_text.get(context.request_id)
        if own is None or not own.is_prefix_of(context.tokens):
            own = self._own_text[context.request_id] = _OwnText(context.tokens)
        self._own_text.move_to_end(context.request_id)
        if len(self._own_text) > MAX_REQUESTS:
            self._own_text.popitem(last=False)
        own.read(context.tokens)
        return own

    def _children(self, own: "_OwnText", context: Gram) -> list[tuple[int, float]]:
        """The likeliest next tokens after `context`."""
        hashes, matches = _hashes(context), own.after(context)
        chances: dict[int, float] = {}
        left = 1.0
        for size, doubt in DOUBT.items():
            if len(context) < size:
                continue
            tokens, counts, total = self._tables[size].after(hashes[size] >> self._bits)
            here = [token for length, token in matches if length >= size]
            whole = total + OWN * len(here)
            if not whole:
                continue
            one = left / (whole + doubt)
            for token, count in zip(tokens, counts, strict=True):
                chances[token] = chances.get(token, 0.0) + one * count
            for token in here:
                chances[token] = chances.get(token, 0.0) + one * OWN
            left *= doubt / (whole + doubt)
            if left < LITTLE:
                break
        return _best(chances, own)


class _OwnText:
    """An index of a request's text so far: the places of each token."""

    __slots__ = ("_end", "_last", "_tokens", "places")

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = tokens
        self._end = max(0, len(tokens) - MAX_TOKENS)
        self._last: list[int] = tokens[max(0, self._end - LONGEST) : self._end]
        self.places: dict[int, list[int]] = {}  # token -> the positions after it, latest last

    def is_prefix_of(self, tokens: list[int]) -> bool:
        """Compare the last tokens: a request taken up anew may have others."""
        return len(tokens) >= self._end and tokens[max(0, self._end - LONGEST) : self._end] == self._last

    def read(self, tokens: list[int]) -> None:
        """Index the tokens that came since."""
        for position in range(self._end, len(tokens)):
            places = self.places.setdefault(tokens[position], [])
            places.append(position + 1)
            if len(places) > MAX_PLACES:
                del places[0]
        self._tokens, self._end = tokens, len(tokens)
        self._last = tokens[-LONGEST:]

    def after(self, context: Gram) -> list[tuple[int, int]]:
        """(tokens that match the end of `context`, the token after them) for each place where the last one stands."""
        tokens, longest = self._tokens, len(context)
        found = []
        for position in self.places.get(context[-1], ()):
            if position < self._end:
                length = 1
                while length < min(longest, position) and tokens[position - 1 - length] == context[-1 - length]:
                    length += 1
                found.append((length, tokens[position]))
        return found


def _best(chances: dict[int, float], own: _OwnText) -> list[tuple[int, float]]:
    """The likeliest few, with tokens of the request's own text raised; the sum of the chances stays."""
    if not chances:
        return []
    raised = {token: chance * HERE if token in own.places else chance for token, chance in chances.items()}
    scale = sum(chances.values()) / sum(raised.values())
    best = sorted(raised.items(), key=itemgetter(1), reverse=True)[:MAX_CHILDREN]
    return [(token, scale * chance) for token, chance in best]


def load_phrases(folder: Path, vocab_size: int) -> Phrases:
    """Load the store in a drafter's folder. Raises ModelRefused."""
    try:
        store = np.load(folder / FILE, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ModelRefused(f"{folder / FILE} cannot be read: {error}") from None
    if store.ndim != 1 or store.dtype.kind != "u":
        raise ModelRefused(f"{folder / FILE} is no list of token ids")
    return Phrases(store, vocab_size)


def _hashes(context: Gram) -> dict[int, int]:
    """Hash the last 1, 2, 3, ... tokens: h = (h + token + 1) * MULTIPLIER, from the last token backwards."""
    found, value = {}, 0
    for size, token in enumerate(reversed(context), start=1):
        value = (value + token + 1) * MULTIPLIER & MASK
        found[size] = value
    return found


def _table(ids: np.ndarray, size: int, vocab_size: int) -> _Table:
    """Count the next tokens of each n-gram that lies, with its next token, within one text."""
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
    bits = np.uint64(_bits(vocab_size))
    pairs = np.sort(grams[is_text] >> bits << bits | following[is_text].astype(np.uint64))
    starts = np.flatnonzero(np.append(True, pairs[1:] != pairs[:-1])[: len(pairs)])
    counts = np.diff(np.append(starts, len(pairs)))
    grams, following = pairs[starts] >> bits, pairs[starts] & ((np.uint64(1) << bits) - np.uint64(1))
    first = np.append(np.flatnonzero(np.append(True, grams[1:] != grams[:-1])[: len(grams)]), len(grams))
    several = np.flatnonzero(np.repeat(np.diff(first) > 1, np.diff(first)))  # most n-grams have one next token
    order = several[np.lexsort((following[several], -counts[several], grams[several]))]
    following[several], counts[several] = following[order], counts[order]
    totals = np.add.reduceat(counts, first[:-1]) if len(counts) else counts
    return _Table(grams[first[:-1]], first, following.astype(np.int32), counts.astype(np.int32), totals)


def _bits(vocab_size: int) -> int:
    """Bits that a token's id takes."""
    return int(vocab_size).bit_length()

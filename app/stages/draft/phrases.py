"""Guess from a store of the target's own text, and from the request's: the tokens that followed the same few before.

Retrieval from a store, as an interpolated n-gram model with a cache (`kernels.cpu.phrase_tree` has the formula and
the sources): no model, some tens of microseconds a round. The store is the same for all requests and learns nothing,
and a request's own text serves that one alone, so tenants share nothing (design D9).

The store is tokens alone (`tokens.npy`, texts parted by one id beyond the vocabulary); the tables are made from it at
the first load, half a second for a million tokens, and kept.
"""

import hashlib
import logging
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from app.errors import ModelRefused
from app.messages import Draft
from app.stages.draft.protocol import Context, draft_of
from kernels.cpu.phrase_tables import LONGEST, MADE_BY, PhraseTables, phrase_tables, read_tables, write_tables
from kernels.cpu.phrase_tree import OwnText, phrase_tree, room

log = logging.getLogger(__name__)
MAX_REQUESTS = 512
MAX_TOKENS = 4096  # of a request that are looked at: the last when it is first seen, and what comes
FILE = "tokens.npy"


class Phrases:
    """Drafter over a fixed store of text and each request's own."""

    name = "phrases"

    def __init__(self, tables: PhraseTables, vocab_size: int) -> None:
        """Draft from the tables of a store, for a target of so many tokens."""
        self._tables = tables
        self._words = vocab_size // 64 + 1
        self._guesses = room()
        phrase_tree(self._tables, _OwnText([], self._words).take([]), 1, self._guesses)  # compiles, before it is urgent
        self._own_text: OrderedDict[str, _OwnText] = OrderedDict()  # by request, the one drafted for last at the end

    def draft(self, contexts: Sequence[Context]) -> list[Draft]:
        drafts = (self._draft(context) for context in contexts if context.max_draft_tokens > 0)
        return [draft for draft in drafts if draft is not None]

    def update(self, context: Context) -> None:
        """Learn nothing for other requests; the request's own tokens are read when it is drafted for."""

    def remove(self, request_id: str) -> None:
        self._own_text.pop(request_id, None)

    def _draft(self, context: Context) -> Draft | None:
        own, out = self._own(context), self._guesses
        count = phrase_tree(self._tables, own.take(context.tokens), context.max_draft_tokens, out)
        return draft_of(self.name, context, *(values[:count].tolist() for values in out)) if count else None

    def _own(self, context: Context) -> "_OwnText":
        own = self._own_text.get(context.request_id)
        if own is None or not own.is_prefix_of(context.tokens):
            own = self._own_text[context.request_id] = _OwnText(context.tokens, self._words)
        self._own_text.move_to_end(context.request_id)
        if len(self._own_text) > MAX_REQUESTS:
            self._own_text.popitem(last=False)
        return own


class _OwnText:
    """A request's text so far as the kernel reads it: the last MAX_TOKENS when it is first seen, and what comes."""

    __slots__ = ("_before", "_buffer", "_end", "_last", "_seen", "_start")

    def __init__(self, tokens: list[int], words: int) -> None:
        """Begin with what lends context to the last MAX_TOKENS of `tokens`; `words`: of 64 bits, for the vocabulary."""
        self._end = max(0, len(tokens) - MAX_TOKENS)
        self._before = max(0, self._end - LONGEST)  # tokens that the buffer leaves out
        self._last = tokens[self._before : self._end]
        self._start = len(self._last)
        self._buffer = np.array(self._last, np.int32)
        self._seen = np.zeros(words, np.uint64)

    def is_prefix_of(self, tokens: list[int]) -> bool:
        """Compare the last tokens: a request taken up anew may have others."""
        return len(tokens) >= self._end and tokens[max(0, self._end - LONGEST) : self._end] == self._last

    def take(self, tokens: list[int]) -> OwnText:
        """Take in the tokens that came since."""
        read, end = self._end - self._before, len(tokens) - self._before
        if end > len(self._buffer):
            self._buffer = np.resize(self._buffer, 2 * end)
        self._buffer[read:end] = tokens[self._end :]
        self._end, self._last = len(tokens), tokens[-LONGEST:]
        return OwnText(self._buffer, self._seen, self._start, read, end)


def load_phrases(folder: Path, vocab_size: int, kept: Path | None = None) -> Phrases:
    """Load the store in a drafter's folder. Raises ModelRefused.

    `kept`: where the tables lie from one start to the next; every process maps the same pages.
    """
    try:
        store = np.load(folder / FILE, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ModelRefused(f"{folder / FILE} cannot be read: {error}") from None
    if store.ndim != 1 or store.dtype.kind != "u":
        raise ModelRefused(f"{folder / FILE} is no list of token ids")
    return Phrases(_tables(store, vocab_size, kept), vocab_size)


def _tables(store: np.ndarray, vocab_size: int, kept: Path | None) -> PhraseTables:
    """Return a store's tables, from below `kept` if they are there; a disk that cannot be written costs time alone."""
    if kept is None:
        return phrase_tables(store.astype(np.int64), vocab_size)
    parts = (MADE_BY.read_bytes(), str((vocab_size, store.dtype)).encode(), store.tobytes())
    place = kept / hashlib.sha256(b"".join(parts)).hexdigest()[:16]
    try:
        if not place.is_dir():
            kept.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=kept) as scratch:
                made = Path(scratch) / "made"
                made.mkdir()
                write_tables(phrase_tables(store.astype(np.int64), vocab_size), made)
                with suppress(OSError):  # another process was faster
                    made.rename(place)
        return read_tables(place)
    except (OSError, ValueError, EOFError) as error:
        log.warning("the tables of phrases cannot be kept in %s: %s", kept, error)
        shutil.rmtree(place, ignore_errors=True)  # made again at the next start
        return phrase_tables(store.astype(np.int64), vocab_size)

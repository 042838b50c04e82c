"""Guess from a store of the target's own text, and from the request's: the tokens that followed the same few before.

An interpolated n-gram model with a cache (formula and sources: `kernels.host.phrase_tree`). A request's own text
serves that one alone, so tenants share nothing (design D9). The store is `tokens.npy`, texts parted by one id beyond
the vocabulary; its tables are made at the first load.
"""

import hashlib
import logging
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import numpy as np

from app.errors import ModelRefused
from app.messages import Draft
from app.stages.draft.protocol import Context, draft_of
from app.stages.draft.text_rows import TextRows
from kernels.host.phrase_tables import LONGEST, MADE_BY, PhraseTables, phrase_tables, read_tables, write_tables
from kernels.host.phrase_tree import MAX_NODES, OwnTexts, phrase_trees, room

log = logging.getLogger(__name__)
MAX_REQUESTS = 512
MAX_TOKENS = 4096  # of a request that are looked at: the last when it is first seen, and what comes
FILE = "tokens.npy"


class Phrases:
    name = "phrases"

    def __init__(self, tables: PhraseTables, vocab_size: int) -> None:
        self._tables = tables
        self._own_text: OrderedDict[str, _OwnText] = OrderedDict()  # by request, the one drafted for last at the end
        rows, words = 8, vocab_size // 64 + 1
        empty = OwnTexts(
            np.zeros((rows, 512), np.int32), np.zeros((rows, words), np.uint64), np.zeros((rows, 2), np.int64)
        )
        self._rows = TextRows(empty)
        self._grown([], [])  # compiles, before it is urgent

    def draft(self, contexts: Sequence[Context]) -> list[Draft]:
        wanted = [context for context in contexts if context.max_draft_tokens > 0]
        if not wanted:
            return []
        asked: list[tuple[int, int, int]] = []
        fresh: list[int] = []
        left: list[int] = []  # rows that are free once the batch is drafted for
        for context in wanted:
            row, new = self._read(context, left)
            asked.append((row, len(new), min(context.max_draft_tokens, MAX_NODES)))
            fresh += new
        tokens, parents, chances, ends = self._grown(asked, fresh)
        drafts, begun = [], 0
        for context, end in zip(wanted, ends, strict=True):
            if end > begun:
                found = (tokens[begun:end], parents[begun:end], chances[begun:end])
                drafts.append(draft_of(self.name, context, *found))
            begun = end
        while len(self._own_text) > MAX_REQUESTS:
            left.append(self._own_text.popitem(last=False)[1].row)
        self._rows.free(left)
        return drafts

    def update(self, context: Context) -> None:
        """Learn nothing; `draft` reads the request's own tokens."""

    def remove(self, request_id: str) -> None:
        own = self._own_text.pop(request_id, None)
        if own is not None:
            self._rows.free([own.row])

    def _read(self, context: Context, left: list[int]) -> tuple[int, list[int]]:
        """Return the row of a request's own text, and its tokens that are not read yet."""
        tokens = context.tokens
        own = self._own_text.get(context.request_id)
        if own is not None and tokens[max(0, own.end - LONGEST) : own.end] != own.last:
            left.append(self._own_text.pop(context.request_id).row)  # a request taken up anew may have other tokens
            own = None
        if own is None:
            own = self._own_text[context.request_id] = self._empty(len(tokens))
        else:
            self._own_text.move_to_end(context.request_id)
        fresh = tokens[own.end :]
        own.end, own.last = len(tokens), tokens[-LONGEST:]
        self._rows.reserve(own.end - own.before)
        return own.row, fresh

    def _empty(self, length: int) -> "_OwnText":
        row, texts = self._rows.take(), self._rows.texts
        first = max(0, length - MAX_TOKENS)
        before = max(0, first - LONGEST)
        texts.seen[row] = 0
        texts.spans[row] = first - before, 0
        return _OwnText(row, before)

    def _grown(
        self, asked: list[tuple[int, int, int]], fresh: list[int]
    ) -> tuple[list[int], list[int], list[float], list[int]]:
        out = room(len(asked), sum(most for _, _, most in asked))
        rows = np.array(asked, np.int64).reshape(-1, 3)
        phrase_trees(self._tables, self._rows.texts, rows, np.array(fresh, np.int32), out)
        ends = out.ends.tolist()
        count = ends[-1] if ends else 0
        tokens, parents = out.nodes[:count].T.tolist()
        return tokens, parents, out.chances[:count].tolist(), ends


class _OwnText:
    """How far a request's own text is read. It starts at most MAX_TOKENS before the first draft."""

    __slots__ = ("before", "end", "last", "row")

    def __init__(self, row: int, before: int) -> None:
        self.row = row
        self.before = before  # tokens that the row leaves out
        self.end = before  # up to here the row has the tokens
        self.last: list[int] = []  # of those, LONGEST at most: a request may come back with others


def load_phrases(folder: Path, vocab_size: int, kept: Path | None = None) -> Phrases:
    """Make a drafter of the store in its folder; all share the tables below `kept`. Raises ModelRefused."""
    try:
        store = np.load(folder / FILE, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ModelRefused(f"{folder / FILE} cannot be read: {error}") from None
    if store.ndim != 1 or store.dtype.kind != "u":
        raise ModelRefused(f"{folder / FILE} is not a list of token ids")
    return Phrases(_tables(store, vocab_size, kept), vocab_size)


# While the files are the same; a verifier's template maps them for its forks.
_mapped = lru_cache(maxsize=2)(lambda place, changed_ns: read_tables(place))


def _tables(store: np.ndarray, vocab_size: int, kept: Path | None) -> PhraseTables:
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
        return _mapped(place, max(file.stat().st_mtime_ns for file in place.iterdir()))
    except (OSError, ValueError, EOFError) as error:
        log.warning("the tables of phrases cannot be kept in %s: %s", kept, error)
        shutil.rmtree(place, ignore_errors=True)  # made again at the next start
        return phrase_tables(store.astype(np.int64), vocab_size)

"""Keep the sequences' page numbers on a device, a row for each; only changes are sent."""

from array import array
from collections.abc import Sequence as Listed
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from app.engine.gpu.input_batch import Arrays, SequenceLimits, warm_up
from app.engine.kv.block_manager import PagedRunner
from app.engine.kv.pages import PagePool
from app.state import BatchEntry, CachedSequence


@dataclass(slots=True)
class _Row:
    sequence: CachedSequence  # kept, so that no other gets its id
    index: int
    known: int
    used: int = 0  # the last step that it was in


class PageTable:
    """The page numbers and sampling parameters of sequences, on the host and on the device.

    Where no row is left, the sequence that was in no step for longest loses its own. New pages are noticed here, taken
    ones are not (`cut`, `forget`).
    """

    def __init__(self, sequences: int, tokens: int, page_tokens: int, vocab_size: int, device: torch.device) -> None:
        shape = (sequences, -(-tokens // page_tokens))
        self.host: Final = np.zeros(shape, np.int32)
        self.device: Final = torch.zeros(shape, dtype=torch.int32, device=device)
        self.limits: Final = SequenceLimits(sequences, vocab_size)
        self.changes: Final[dict[int, int]] = {}  # page by place in the table, rows one after the other: not yet sent
        self._free = list(reversed(range(sequences)))
        self._rows: dict[int, _Row] = {}  # by the sequence's id()
        self._turn = 0  # steps so far
        warm_up(self.host, self.limits)

    def update(self, works: Listed[BatchEntry]) -> np.ndarray:
        """Enter the entries' new pages; return their rows (B,). Raises ValueError for more entries than rows."""
        if len(works) > len(self.host):
            raise ValueError(f"a step of {len(works)} sequences, on a page table of {len(self.host)}")
        self._turn += 1
        turn, rows = self._turn, self._rows
        indexes: list[int] = []
        for work in works:
            sequence = work.sequence
            key = id(sequence)
            row = rows[key] if key in rows else self._new_row(key, sequence)
            row.used = turn
            if len(sequence.pages) > row.known:
                self._enter(row, sequence.pages[row.known : self.host.shape[1]])
            indexes += (row.index,)
        return np.array(indexes)

    def cut(self, sequence: CachedSequence) -> None:
        row = self._rows.get(id(sequence))
        if row is not None:
            row.known = min(row.known, len(sequence.pages))

    def forget(self, sequence: CachedSequence) -> None:
        row = self._rows.pop(id(sequence), None)
        if row is not None:
            self._free.append(row.index)

    def launch(self, arrays: Arrays) -> None:
        if self.changes:
            count = len(self.changes)
            self._write(arrays.device["change_at"][:count], arrays.device["change_page"][:count])
            self.changes.clear()

    def rehearse(self) -> None:
        first = self.device.view(-1)[:1].clone()
        self._write(torch.zeros(1, dtype=torch.int64, device=first.device), first)

    def _write(self, at: torch.Tensor, pages: torch.Tensor) -> None:
        self.device.view(-1).scatter_(0, at, pages)

    def _enter(self, row: _Row, added: "array[int]") -> None:
        if not added:
            return
        first = row.index * self.host.shape[1] + row.known
        self.changes.update(zip(range(first, first + len(added)), added, strict=True))
        self.host[row.index, row.known : row.known + len(added)] = added
        row.known += len(added)

    def _new_row(self, key: int, sequence: CachedSequence) -> _Row:
        if not self._free:
            self.forget(min(self._rows.values(), key=lambda row: row.used).sequence)
        found = self._rows[key] = _Row(sequence, self._free.pop(), 0)
        self.limits.enter(found.index, sequence.sampling)
        return found


class TabledRunner(PagedRunner):
    def __init__(self, pool: PagePool, page_table: PageTable, *, shares: bool) -> None:
        super().__init__(pool, shares=shares)
        self.page_table: Final = page_table

    def release(self, sequence: CachedSequence) -> None:
        self.page_table.forget(sequence)
        super().release(sequence)

    def _note_trim(self, sequence: CachedSequence) -> None:
        self.page_table.cut(sequence)

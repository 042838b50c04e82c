"""Build a step's input on a GPU: named arrays in one buffer, written on the host, sent to the
device in one copy.

Goes in: batch entries; comes out: RowTensors on the device. Knows no weights.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from app.engine.sampling import choice_of
from app.state import BatchEntry
from kernels.attention.ragged_attention import MAX_TREE_ROWS, Batch
from kernels.sampling.choices import Edits, RowChoices, limits_of

ALIGNMENT = 16  # bytes: the widest load of a kernel
Fields = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
_NUMPY = {torch.int32: np.int32, torch.int64: np.int64, torch.float32: np.float32}


class Arrays:
    """Named arrays side by side in one buffer, on the host and on the device.

    `host[name]` is a numpy view, `device[name]` a tensor of the same shape at an address that never
    changes. Write to the host's side only after a result of the step that the last `send` was for
    has been read: the copy is over by then.
    """

    def __init__(self, fields: Fields, device: torch.device) -> None:
        starts: dict[str, int] = {}
        end = 0
        for name, (dtype, shape) in fields.items():
            starts[name] = end
            end += -(-math.prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        self._host = torch.zeros(end, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._device = torch.zeros(end, dtype=torch.uint8, device=device)
        self.host: dict[str, np.ndarray] = {}
        self.device: dict[str, torch.Tensor] = {}
        for name, (dtype, shape) in fields.items():
            size = math.prod(shape) * dtype.itemsize
            part = slice(starts[name], starts[name] + size)
            self.host[name] = self._host[part].numpy().view(_NUMPY[dtype]).reshape(shape)
            self.device[name] = self._device[part].view(dtype).view(shape)

    def send(self) -> None:
        """Copy the host's side to the device, in the order of the current stream."""
        self._device.copy_(self._host, non_blocking=True)


@dataclass(frozen=True, slots=True)
class RowTensors:
    """T rows on the device, those of one sequence side by side. A padding row belongs to no
    sequence and has slot -1."""

    ids: torch.Tensor  # (T,) int32
    positions: torch.Tensor  # (T,) int32
    slots: torch.Tensor  # (T,) int32, page * S + offset
    narrow: Batch | None  # sequences of at most 64 rows: trees
    wide: Batch | None  # the others: chunks of prompts
    wanted: torch.Tensor | None  # (N,) int32, rows whose tokens are wanted; None: all
    choices: RowChoices  # of the N wanted rows


NOWHERE = -1  # slot of a padding row
GREEDY = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "log_min_p": -np.inf, "seed": 0, "choice": 0}  # its choice


@dataclass(frozen=True, slots=True)
class Size:
    """The sizes that a step's shapes follow from: the arrays' capacity, and what decides the
    launches' grids."""

    rows: int  # T
    sequences: int  # B
    narrow_rows: int  # of a sequence, at most
    wide_rows: int  # of a prompt's chunk, at most; 0: there is none
    keys: int  # a sequence's, at most
    wanted: int | None  # N, at least one; None: all rows


def size_of(works: list[BatchEntry]) -> Size:
    """Return the least size that the batch entries fit in."""
    rows = [len(work.tokens) + len(work.tree) for work in works]
    wide = [n for n in rows if n > MAX_TREE_ROWS]
    return Size(
        rows=sum(rows),
        sequences=len(works),
        narrow_rows=max((n for n in rows if n <= MAX_TREE_ROWS), default=0),
        wide_rows=max(wide, default=0),
        keys=max(work.start + n for work, n in zip(works, rows, strict=True)),
        wanted=max(1, sum(1 + len(work.tree) for work in works if work.final)),
    )


def fields(size: Size, page_tokens: int) -> Fields:
    """Return the dtypes and shapes of the arrays that steps up to `size` need."""
    ints, longs, floats = torch.int32, torch.int64, torch.float32
    T, B = size.rows, size.sequences
    N = size.wanted or T
    table = -(-size.keys // page_tokens)
    return {
        "ancestors": (longs, (T,)), "seed": (longs, (N,)), "choice": (longs, (N,)), "position": (longs, (N,)),
        "ids": (ints, (T,)), "positions": (ints, (T,)), "slots": (ints, (T,)), "depth": (ints, (T,)),
        "wanted": (ints, (N,)), "prefix": (ints, (B,)), "first_row": (ints, (B,)), "blocks": (ints, (B, table)),
        "narrow": (ints, (B,)), "wide": (ints, (B,)),
        "top_k": (ints, (N,)), "temperature": (floats, (N,)), "top_p": (floats, (N,)), "log_min_p": (floats, (N,)),
    }  # fmt: skip


def rows_of(arrays: Arrays, size: Size, edits: Edits | None = None) -> RowTensors:
    """Return the device's side of the arrays as rows, with these edits of the wanted ones."""
    d = arrays.device
    narrow = Batch(
        d["first_row"], d["narrow"], d["prefix"], d["blocks"], d["ancestors"], d["depth"], size.narrow_rows, size.keys
    )
    wide = Batch(d["first_row"], d["wide"], d["prefix"], d["blocks"], None, None, size.wide_rows, size.keys)
    return RowTensors(
        ids=d["ids"],
        positions=d["positions"],
        slots=d["slots"],
        narrow=narrow if size.narrow_rows else None,
        wide=wide if size.wide_rows else None,
        wanted=None if size.wanted is None else d["wanted"],
        choices=RowChoices(
            d["temperature"], d["top_k"], d["top_p"], d["log_min_p"], d["seed"], d["choice"], d["position"], edits
        ),
    )


def fill(arrays: Arrays, works: list[BatchEntry], page_tokens: int, vocab_size: int) -> None:
    """Write the batch entries' rows to the host's side, one entry after the other; what is left
    over is padding."""
    host = arrays.host
    counts = np.array([len(work.tokens) + len(work.tree) for work in works])
    starts = np.array([work.start for work in works])
    firsts = np.cumsum(counts) - counts
    width = host["blocks"].shape[1]
    for i, work in enumerate(works):
        pages = work.sequence.pages[:width]
        host["blocks"][i, : len(pages)] = pages
    is_narrow = counts <= MAX_TREE_ROWS
    _put(host["first_row"], firsts, 0)
    _put(host["prefix"], starts, 0)
    _put(host["narrow"], np.where(is_narrow, counts, 0), 0)
    _put(host["wide"], np.where(is_narrow, 0, counts), 0)
    _fill_rows(host, works, counts, starts, firsts, page_tokens)
    _fill_choices(host, works, counts, firsts, vocab_size)


def _fill_rows(
    host: dict[str, np.ndarray],
    works: list[BatchEntry],
    counts: np.ndarray,
    starts: np.ndarray,
    firsts: np.ndarray,
    page_tokens: int,
) -> None:
    ids: list[int] = []
    depths: list[int] = []
    ancestors: list[int] = []
    for work in works:
        ids += work.tokens
        ids += work.tree.tokens
        _add_tree(work, depths, ancestors)
    sequence = np.repeat(np.arange(len(works)), counts)
    slots = starts[sequence] + np.arange(len(ids)) - firsts[sequence]
    pages = host["blocks"][sequence, slots // page_tokens]
    _put(host["ids"], ids, 0)
    _put(host["depth"], depths, 0)
    _put(host["ancestors"], np.array(ancestors, np.uint64).view(np.int64), 0)
    _put(host["positions"], starts[sequence] + np.array(depths), 0)
    _put(host["slots"], pages * page_tokens + slots % page_tokens, NOWHERE)


def _add_tree(work: BatchEntry, depths: list[int], ancestors: list[int]) -> None:
    """Append each row's depth below the entry's first, and a bit for each of the entry's rows that
    it sees."""
    length, first = len(work.tokens), len(depths)
    depths += range(length)
    ancestors += [(2 << j) - 1 if j < MAX_TREE_ROWS else 0 for j in range(length)]  # longer ones have no tree
    for node, parent in enumerate(work.tree.parents, start=length):
        above = first + length - 1 + parent
        depths.append(depths[above] + 1)
        ancestors.append(ancestors[above] | 1 << node)


def _fill_choices(
    host: dict[str, np.ndarray], works: list[BatchEntry], counts: np.ndarray, firsts: np.ndarray, vocab_size: int
) -> None:
    """Write the choices of the wanted rows: a final batch entry's last token and its tree."""
    final = [i for i, work in enumerate(works) if work.final]
    sizes = np.array([1 + len(works[i].tree) for i in final], np.int64)
    ends = np.array([firsts[i] + counts[i] for i in final], np.int64)
    place = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    rows = np.repeat(ends - sizes, sizes) + place
    limits = [limits_of(choice_of(works[i].sequence.sampling), vocab_size) for i in final]
    _put(host["wanted"], rows, 0)
    _put(host["position"], host["positions"][rows] + 1, 0)  # where the token is to stand
    for name, idle in GREEDY.items():
        _put(host[name], np.repeat(np.array([getattr(one, name) for one in limits]), sizes), idle)


def _put(array: np.ndarray, values: Any, idle: float) -> None:
    """Write from the front; the rest is `idle`."""
    array[: len(values)] = values
    array[len(values) :] = idle

"""From works to the numbers of a step: written into arrays of a fixed capacity, read from them as a step's rows."""

from dataclasses import dataclass

import numpy as np
import torch

from app.engine.device.arrays import Arrays, Fields
from app.engine.device.rows import Rows
from app.engine.runner import choice_of
from app.state import Work
from kernels.ragged_attention import MAX_TREE_ROWS, Batch
from kernels.row_choices import Edits, RowChoices, limits_of

NOWHERE = -1  # slot of a row that only fills up


@dataclass(frozen=True, slots=True)
class Size:
    """What a step's shapes are made of: the arrays' capacity, and what decides the launches' grids."""

    rows: int  # T
    sequences: int  # B
    narrow_rows: int  # of a sequence, at most
    wide_rows: int  # of a prompt's chunk, at most; 0: there is none
    keys: int  # a sequence's, at most
    wanted: int  # N; 0: all rows


def size_of(works: list[Work]) -> Size:
    """The least that the works fit in."""
    rows = [len(work.tokens) + len(work.tree) for work in works]
    wide = [n for n in rows if n > MAX_TREE_ROWS]
    return Size(
        rows=sum(rows),
        sequences=len(works),
        narrow_rows=max((n for n in rows if n <= MAX_TREE_ROWS), default=0),
        wide_rows=max(wide, default=0),
        keys=max(work.start + n for work, n in zip(works, rows, strict=True)),
        wanted=sum(1 + len(work.tree) for work in works if work.final),
    )


def fields(size: Size, page_tokens: int) -> Fields:
    """The arrays that steps up to `size` need."""
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


def rows_of(arrays: Arrays, size: Size, edits: Edits | None = None) -> Rows:
    """The rows on the device."""
    d = arrays.device
    narrow = Batch(
        d["first_row"], d["narrow"], d["prefix"], d["blocks"], d["ancestors"], d["depth"], size.narrow_rows, size.keys
    )
    wide = Batch(d["first_row"], d["wide"], d["prefix"], d["blocks"], None, None, size.wide_rows, size.keys)
    return Rows(
        ids=d["ids"],
        positions=d["positions"],
        slots=d["slots"],
        narrow=narrow if size.narrow_rows else None,
        wide=wide if size.wide_rows else None,
        wanted=d["wanted"] if size.wanted else None,
        choices=RowChoices(
            d["temperature"], d["top_k"], d["top_p"], d["log_min_p"], d["seed"], d["choice"], d["position"], edits
        ),
    )


def fill(arrays: Arrays, works: list[Work], page_tokens: int, vocab_size: int) -> None:
    """Write the works' rows one after the other; what is left over fills up and changes nothing."""
    host = arrays.host
    for name in ("ids", "positions", "narrow", "wide", "temperature"):
        host[name].fill(0)
    host["slots"].fill(NOWHERE)
    host["top_k"].fill(0)
    host["top_p"].fill(1.0)
    host["log_min_p"].fill(-np.inf)
    takes_all = len(host["wanted"]) == len(host["ids"])
    row = wanted = 0
    for i, work in enumerate(works):
        count = len(work.tokens) + len(work.tree)
        rows = slice(row, row + count)
        _fill_rows(host, rows, work, page_tokens)
        host["first_row"][i], host["prefix"][i] = row, work.start
        host["narrow" if count <= MAX_TREE_ROWS else "wide"][i] = count
        held = min(len(work.sequence.pages), host["blocks"].shape[1])
        host["blocks"][i, :held] = work.sequence.pages[:held]
        if work.final:
            first = row + len(work.tokens) - 1  # of those whose tokens are wanted
            if takes_all:
                wanted = first
            out = slice(wanted, wanted + row + count - first)
            host["wanted"][out] = range(first, row + count)
            _fill_choices(host, out, work, host["positions"][first : row + count], vocab_size)
            wanted = out.stop
        row += count


def _fill_rows(host: dict[str, np.ndarray], rows: slice, work: Work, page_tokens: int) -> None:
    length, tree, start = len(work.tokens), work.tree, work.start
    slots = np.arange(start, start + length + len(tree))
    pages = np.asarray(work.sequence.pages)
    host["slots"][rows] = pages[slots // page_tokens] * page_tokens + slots % page_tokens
    host["ids"][rows] = work.tokens + tree.tokens
    depth, bits = list(range(length)), [(2 << j) - 1 for j in range(min(length, MAX_TREE_ROWS))]
    if length + len(tree) <= MAX_TREE_ROWS:
        for node, parent in enumerate(tree.parents, start=length):
            above = length - 1 + parent
            depth.append(depth[above] + 1)
            bits.append(bits[above] | 1 << node)
        host["ancestors"][rows] = np.array(bits, np.uint64).view(np.int64)
    host["depth"][rows] = depth
    host["positions"][rows] = start + host["depth"][rows]


def _fill_choices(host: dict[str, np.ndarray], out: slice, work: Work, positions: np.ndarray, vocab_size: int) -> None:
    choice = limits_of(choice_of(work.sequence.record.sampling), vocab_size)
    for name in ("temperature", "top_k", "top_p", "log_min_p", "seed", "choice"):
        host[name][out] = getattr(choice, name)
    host["position"][out] = positions + 1  # where the token is to stand

"""Build a step's input on a GPU."""

import math
from array import array
from bisect import bisect_left
from collections.abc import Mapping
from collections.abc import Sequence as Listed
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import torch

from app.engine.sampling_parameters import choice_of
from app.request import Sampling
from app.state import BatchEntry
from kernels.attention.ragged_attention import MAX_TREE_ROWS, AttentionTiling, Batch
from kernels.attention.work_list import ITEM, Work, WorkList
from kernels.cpu.attention_work import list_work, write_work
from kernels.host.step_rows import Entries, Rows, write_rows
from kernels.sampling.choices import RowChoices
from kernels.sampling.parameters import PARAMETERS, limits_of, parameter_arrays

ALIGNMENT = 16  # bytes: the widest load of a kernel
TIERS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)  # rows of steps that have their arrays ready
CHANGES = (64, 2)  # of the page table, that a tier has room for: so many, and more for each of its rows
PARTS = 8192  # of a tier, the results of slices of keys that wait to be joined: 135 MB of an 8B model
Fields = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
_NUMPY = {torch.int32: np.int32, torch.int64: np.int64, torch.float32: np.float32}


class Arrays:
    """Named arrays side by side in one buffer, on the host and on the device.

    `host[name]` is a numpy view, `device[name]` a tensor of the same shape at a fixed address. There are two host
    buffers: one is written while the other may still be copied.
    """

    def __init__(self, fields: Fields, device: torch.device, buffers: int = 1) -> None:
        starts = self._starts = dict[str, int]()
        end = 0
        for name, (dtype, shape) in fields.items():
            starts[name] = end
            end += -(-math.prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        is_cuda = device.type == "cuda"
        self._buffers = [torch.zeros(end, dtype=torch.uint8, pin_memory=is_cuda) for _ in range(buffers)]
        self._copied: list[torch.cuda.Event | None] = [None] * buffers  # the last copy of each
        self._turn = 0
        self._device = torch.zeros(end, dtype=torch.uint8, device=device)
        self._views: list[dict[str, np.ndarray]] = [{} for _ in self._buffers]
        self.device: dict[str, torch.Tensor] = {}
        for name, (dtype, shape) in fields.items():
            size = math.prod(shape) * dtype.itemsize
            part = slice(starts[name], starts[name] + size)
            for views, buffer in zip(self._views, self._buffers, strict=True):
                views[name] = buffer[part].numpy().view(_NUMPY[dtype]).reshape(shape)
            self.device[name] = self._device[part].view(dtype).view(shape)

    def turn(self) -> dict[str, np.ndarray]:
        """Switch to the next host buffer, once its last copy is over."""
        self._turn = (self._turn + 1) % len(self._buffers)
        copied = self._copied[self._turn]
        if copied is not None:
            copied.synchronize()
        return self._views[self._turn]

    def send(self, last: str, count: int) -> int:
        """Copy the host's side in the current stream's order; return the bytes. Of array `last` only `count` entries
        go.
        """
        end = self._starts[last] + self._views[self._turn][last][:count].nbytes
        self._device[:end].copy_(self._buffers[self._turn][:end], non_blocking=True)
        if self._device.is_cuda:
            event = self._copied[self._turn] = self._copied[self._turn] or torch.cuda.Event()
            event.record()
        return end


@dataclass(frozen=True, slots=True)
class Cut:
    fold: int  # query heads of a key head
    narrow: AttentionTiling  # of sequences of at most 64 rows
    wide: AttentionTiling  # of prompts' longer chunks


@dataclass(frozen=True, slots=True)
class AttentionPart:
    batch: Batch
    work: Work
    tiling: AttentionTiling


@dataclass(frozen=True, slots=True)
class RowTensors:
    """T rows, those of one sequence side by side; a padding row has slot -1."""

    ids: torch.Tensor  # (T,) int32
    positions: torch.Tensor  # (T,) int32
    slots: torch.Tensor  # (T,) int32, page * S + offset
    parts: tuple[AttentionPart, ...]  # sequences of at most 64 rows, which may be trees; the others
    wanted: torch.Tensor | None  # (N,) int32, rows whose tokens are wanted; None: all
    choices: RowChoices  # of the N wanted rows


NO_WORK = WorkList(np.zeros((0, ITEM), np.int32), np.zeros(0, np.int32), np.zeros(0, np.int32), 0)


class SequenceLimits:
    def __init__(self, rows: int, vocab_size: int) -> None:
        self._by_name = {name: np.zeros(rows, kind) for name, (kind, _) in PARAMETERS.items()}
        self.table: Final = parameter_arrays(self._by_name)
        self._vocab_size = vocab_size

    def enter(self, row: int, sampling: Sampling) -> None:
        limits = limits_of(choice_of(sampling), self._vocab_size)
        for name, own in self._by_name.items():
            own[row] = getattr(limits, name)


class Move(NamedTuple):
    pages: "array[int]"  # from that of the first node on
    below: int  # the first node's slot in them
    path: list[int]  # accepted nodes, root's child first


@dataclass(frozen=True, slots=True)
class WorkRoom:
    items: int
    parts: int  # slices of rows of sequences that have several
    num_programs: int | None = None  # None: as many as there are items


@dataclass(frozen=True, slots=True)
class Size:
    rows: int  # T
    sequences: int  # B
    narrow: WorkRoom | None  # sequences of at most 64 rows; None: there are none
    wide: WorkRoom | None
    wanted: int | None  # N, at least one; None: all rows
    moves: int = 0  # M, of the last step's accepted nodes
    changes: int = 0  # C, of the page table

    @property
    def tier(self) -> int:
        spare, each = CHANGES
        return (*TIERS, 0)[bisect_left(TIERS, max(self.rows, self.moves, -(-(self.changes - spare) // each)))]

    def holds(self, other: "Size") -> bool:
        """All rows of the other step are wanted."""
        return (
            other.rows <= self.rows
            and other.wanted == other.rows
            and other.moves <= self.moves
            and other.changes <= self.changes
            and other.wide is None
            and self.narrow is not None
            and other.narrow is not None
            and other.narrow.items <= self.narrow.items
            and other.narrow.parts <= self.narrow.parts
        )


@dataclass(frozen=True, slots=True)
class RowLayout:
    works: list[BatchEntry]
    entries: Entries  # the same in arrays
    narrow: WorkList | None
    wide: WorkList | None

    def size(self, moves: int = 0, changes: int = 0) -> Size:
        return Size(
            rows=len(self.entries.ids),
            sequences=len(self.works),
            narrow=None if self.narrow is None else WorkRoom(len(self.narrow.items), self.narrow.num_parts),
            wide=None if self.wide is None else WorkRoom(len(self.wide.items), self.wide.num_parts),
            wanted=max(1, sum([1 + len(work.tree.tokens) for work in self.works if work.final])),
            moves=moves,
            changes=changes,
        )


def layout_of(works: list[BatchEntry], cut: Cut, table_rows: np.ndarray) -> RowLayout:
    entries = _entries(works, table_rows)

    def listed(least: int, most: int, tiling: AttentionTiling) -> WorkList | None:
        found = WorkList(*list_work(entries, least, most, cut.fold, tiling.rows, tiling.split_keys))
        return found if len(found.items) else None

    narrow, wide = listed(1, MAX_TREE_ROWS, cut.narrow), None
    if len(entries.ids) > MAX_TREE_ROWS:
        wide = listed(MAX_TREE_ROWS + 1, len(entries.ids), cut.wide)
    return RowLayout(works, entries, narrow, wide)


def _entries(works: list[BatchEntry], table_rows: np.ndarray) -> Entries:
    lengths: list[int] = []
    nodes: list[int] = []
    ids: list[int] = []
    parents: list[int] = []
    for work in works:
        tokens, tree = work.tokens, work.tree
        lengths.append(len(tokens))
        nodes.append(len(tree.tokens))
        ids += tokens
        ids += tree.tokens
        parents += tree.parents
    return Entries(
        lengths=np.array(lengths),
        nodes=np.array(nodes),
        starts=np.array([work.start for work in works]),
        table_rows=table_rows,
        finals=np.array([work.final for work in works]),
        ids=np.array(ids, np.int64),
        parents=np.array(parents, np.int64),
    )


def most_work(rows: int, keys: int, fold: int, tiling: AttentionTiling) -> WorkRoom:
    slices = -(-keys // tiling.split_keys) if tiling.split_keys else 1
    return WorkRoom(rows * -(-fold // tiling.rows) * slices, rows * slices if slices > 1 else 0)


def tier_size(rows: int, keys: int, cut: Cut, num_programs: int | None = None) -> Size:
    most = most_work(rows, keys, cut.fold, cut.narrow)
    least = most_work(rows, cut.narrow.keys, cut.fold, cut.narrow).items  # one slice of each
    room = WorkRoom(min(most.items, max(PARTS, least)), min(most.parts, PARTS), num_programs)
    spare, each = CHANGES
    return Size(rows, rows, narrow=room, wide=None, wanted=None, moves=rows, changes=spare + each * rows)


def fields(size: Size, page_tokens: int) -> Fields:
    """The last ones are sent in part."""
    ints, longs, floats = torch.int32, torch.int64, torch.float32
    T, B = size.rows, size.sequences
    N = size.wanted or T
    kinds = {np.float32: floats, np.int32: ints, np.int64: longs}
    parameters = {name: (kinds[kind], (N,)) for name, (kind, _) in PARAMETERS.items()}
    M, width, C = size.moves, moved_pages(page_tokens), size.changes
    rooms = {"narrow": size.narrow or WorkRoom(0, 0), "wide": size.wide or WorkRoom(0, 0)}
    lists = {
        f"{name}_{field}": (ints, shape)
        for name, room in rooms.items()
        for field, shape in (("items", (room.items, ITEM)), ("count", (1,)), ("slices", (T,)), ("place", (T,)))
    }
    return {
        "ancestors": (longs, (T,)), "position": (longs, (N,)),
        "ids": (ints, (T,)), "positions": (ints, (T,)), "slots": (ints, (T,)), "depth": (ints, (T,)),
        "wanted": (ints, (N,)), "prefix": (ints, (B,)), "first_row": (ints, (B,)),
        "narrow": (ints, (B,)), "wide": (ints, (B,)),
        **parameters,
        **lists,
        "change_page": (ints, (C,)), "change_at": (longs, (C,)),
        "move_below": (ints, (M,)), "move_length": (ints, (M,)), "move_path": (ints, (M, MAX_TREE_ROWS)),
        "move_blocks": (ints, (M, width)),
    }  # fmt: skip


def moved_pages(page_tokens: int) -> int:
    return (MAX_TREE_ROWS + page_tokens - 1) // page_tokens + 1


def rows_of(arrays: Arrays, size: Size, cut: Cut, page_table: torch.Tensor) -> RowTensors:
    """page_table: (R, N) int32, on the device."""
    d = arrays.device

    def part(name: str, room: WorkRoom, tiling: AttentionTiling, *, has_trees: bool) -> AttentionPart:
        tree = (d["ancestors"], d["depth"]) if has_trees else (None, None)
        items, count, slices, place = (d[f"{name}_{field}"] for field in ("items", "count", "slices", "place"))
        work = Work(items, count, slices, place, room.parts, room.num_programs)
        return AttentionPart(Batch(d["first_row"], d[name], d["prefix"], page_table, *tree), work, tiling)

    narrow = [part("narrow", size.narrow, cut.narrow, has_trees=True)] if size.narrow else []
    wide = [part("wide", size.wide, cut.wide, has_trees=False)] if size.wide else []
    return RowTensors(
        ids=d["ids"],
        positions=d["positions"],
        slots=d["slots"],
        parts=(*narrow, *wide),
        wanted=None if size.wanted is None else d["wanted"],
        choices=RowChoices(**{name: d[name] for name in PARAMETERS}, position=d["position"], edits=None),
    )


def fill(
    arrays: Arrays,
    layout: RowLayout,
    page_table: np.ndarray,
    page_tokens: int,
    limits: SequenceLimits,
    changes: Mapping[int, int],
    moves: Listed[Move] = (),
) -> None:
    """Write a step's rows, work, changes of the page table and moves to the host's side, and send it.

    page_table: (R, N) int32, the host's; limits: of its R rows; changes: page by place in it. The rest is padding.
    """
    host = arrays.turn()
    rows = Rows(*[host[name] for name in Rows._fields])
    write_rows(layout.entries, page_table, page_tokens, limits.table, rows, parameter_arrays(host))
    for name, listed in (("narrow", layout.narrow), ("wide", layout.wide)):
        own = listed or NO_WORK
        host[f"{name}_count"][0] = len(own.items)
        room = [host[f"{name}_{field}"] for field in ("items", "slices", "place")]
        write_work(own.items, own.slices, own.place, *room)
    host["change_at"][: len(changes)] = np.fromiter(changes.keys(), np.int64, len(changes))
    host["change_page"][: len(changes)] = np.fromiter(changes.values(), np.int32, len(changes))
    for i, (moved, below, path) in enumerate(moves):
        host["move_blocks"][i, : len(moved)] = moved
        host["move_below"][i], host["move_length"][i] = below, len(path)
        host["move_path"][i, : len(path)] = path
    arrays.send(*("move_blocks", len(moves)) if moves else ("change_at", len(changes)))


def warm_up(page_table: np.ndarray, limits: SequenceLimits) -> None:
    longs, ints = np.zeros(0, np.int64), np.zeros(0, np.int32)
    rows = Rows(ints, ints, longs, ints, ints, ints, longs, ints, ints, ints, ints)
    entries = Entries(longs, longs, longs, longs, np.zeros(0, np.bool_), longs, longs)
    write_rows(entries, page_table, 1, limits.table, rows, SequenceLimits(0, 0).table)
    items, slices, place, _ = list_work(entries, 1, 1, 1, 1, 0)
    write_work(items, slices, place, items, slices, place)

"""List the tiles of rows and slices of keys for a launch of ragged attention.

An item is one tile of folded rows of one sequence over one slice of its keys. Its result goes to the output if the
sequence has one slice, else to the parts: slice s of row r at place[r] + s.
"""

from dataclasses import dataclass

import numpy as np
import torch

ITEM = 4  # numbers of an item: sequence, slice, tile, row of the page table


@dataclass(frozen=True, slots=True)
class Work:
    """All int32."""

    items: torch.Tensor  # (W, 4): sequence, slice of its keys, tile of its rows, its row of the page table; none
    # behind `count` is read
    count: torch.Tensor  # (1,), items
    slices: torch.Tensor  # (T,), of each packed row's sequence; 0: the row has none here
    place: torch.Tensor  # (T,), of the row's first slice among the parts; read where it has several
    num_parts: int  # room for the rows' slices; 0: no sequence has several
    num_programs: int | None  # that share the items; None: one for each item and key head


@dataclass(frozen=True, slots=True)
class WorkList:
    items: np.ndarray  # (W, 4) int32
    slices: np.ndarray  # (T,) int32
    place: np.ndarray  # (T,) int32
    num_parts: int

    def on_device(self, device: torch.device) -> Work:
        arrays = (self.items, np.array([len(self.items)]), self.slices, self.place)
        items, count, slices, place = (torch.from_numpy(one.astype(np.int32)).to(device) for one in arrays)
        return Work(items, count, slices, place, self.num_parts, None)


def work_list(
    firsts: np.ndarray,
    counts: np.ndarray,
    prefixes: np.ndarray,
    num_packed: int,
    fold: int,
    tile_rows: int,
    split_keys: int,
    table_rows: np.ndarray | None = None,
) -> WorkList:
    """Return the work of sequences with `counts` (B,) new rows from row `firsts` (B,), behind `prefixes` (B,) keys.

    num_packed: T, rows of no sequence included; fold: query heads of a key head; tile_rows: folded rows of a tile;
    split_keys: keys of a slice (0: no split); table_rows: (B,), of the page table.
    """
    tiles = -(-counts * fold // tile_rows)
    slices = -(-(prefixes + counts) // split_keys) if split_keys else np.ones_like(counts)
    each = tiles * slices
    ends = each.cumsum()
    sequence = np.arange(len(counts)).repeat(each)
    within = np.arange(len(sequence)) - (ends - each)[sequence]
    # Tiles side by side: they read the same keys, at nearly the same time.
    items = np.empty((len(sequence), ITEM), np.int32)
    items[:, 0] = sequence
    items[:, 3] = sequence if table_rows is None else table_rows[sequence]
    items[:, 1], items[:, 2] = np.divmod(within, tiles[sequence])
    packed = np.arange(int(counts.sum())) + (firsts - counts.cumsum() + counts).repeat(counts)
    of_rows = np.zeros(num_packed, np.int32)
    of_rows[packed] = slices.repeat(counts)
    parts = of_rows * (of_rows > 1)
    ends = parts.cumsum(dtype=np.int32)
    return WorkList(items, of_rows, ends - parts, int(ends[-1]) if num_packed else 0)

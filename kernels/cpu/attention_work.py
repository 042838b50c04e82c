"""List attention's work on the entries of a step that have a given number of rows; `work_list` is the reference."""

import numpy as np

from kernels.host.step_rows import Entries
from kernels.jit import entry


@entry
def list_work(
    entries: Entries, least: int, most: int, fold: int, tile_rows: int, split_keys: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Return items (W, 4), slices (T,), places (T,) and the parts, for entries of `least` to `most` rows.

    fold: query heads of a key head; tile_rows: folded rows of a tile; split_keys: keys of a slice (0: no split).
    """
    size = len(entries.lengths)
    tiles, slices = np.zeros(size, np.int64), np.zeros(size, np.int64)
    for b in range(size):
        count = entries.lengths[b] + entries.nodes[b]
        if least <= count <= most:
            tiles[b] = -(-count * fold // tile_rows)
            slices[b] = -(-(entries.starts[b] + count) // split_keys) if split_keys else 1
    items = np.empty(((tiles * slices).sum(), 4), np.int32)
    of_rows, place = np.zeros(len(entries.ids), np.int32), np.zeros(len(entries.ids), np.int32)
    item, row, parts = 0, 0, 0
    for b in range(size):
        for within in range(tiles[b] * slices[b]):
            items[item, 0], items[item, 3] = b, entries.table_rows[b]
            items[item, 1], items[item, 2] = within // tiles[b], within % tiles[b]
            item += 1
        for _ in range(entries.lengths[b] + entries.nodes[b]):
            of_rows[row], place[row] = slices[b], parts
            parts += slices[b] if slices[b] > 1 else 0
            row += 1
    return items, of_rows, place, parts


@entry
def write_work(
    items: np.ndarray,
    slices: np.ndarray,
    place: np.ndarray,
    all_items: np.ndarray,
    all_slices: np.ndarray,
    all_place: np.ndarray,
) -> None:
    count, rows = len(items), len(slices)
    all_items[:count], all_slices[:rows], all_place[:rows] = items, slices, place
    all_items[count:], all_slices[rows:], all_place[rows:] = 0, 0, 0

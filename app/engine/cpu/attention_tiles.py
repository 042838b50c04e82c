"""Build the tensors of one packed forward through transformers' modules: slots to write, tiles and
masks of attention.

Goes in: a PackedBatch; comes out: a Layout that the attention of `hooked` reads. Knows no weights.
"""

from array import array
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from app.engine.packing import PackedBatch, PackedSpan
from kernels.attention.paged_attention import MIN_ROWS, TileGroup

TREE_TILES = (4, 8, 16)  # a chain of at most 16 rows gets one tile, all such chains of a batch the same height
CHUNK_TILE = 32


class Kind(NamedTuple):
    """A layer's way of attending, as its model passes it to the attention interface."""

    window: int | None
    scale: float
    softcap: float | None


class Layout:
    """A packed batch as tensors; it travels through the model to every attention layer, and keeps
    how each attends."""

    def __init__(self, plan: PackedBatch, num_heads: int, num_key_heads: int) -> None:
        self.plan, self.kv = plan, plan.kv
        self.num_heads, self.num_key_heads = num_heads, num_key_heads
        self.kinds: dict[int, Kind] = {}
        self._own = _columns(plan.own)
        self._forked = _columns(plan.forked) if plan.forked else None
        self._copies = torch.tensor(plan.copies).unbind(1) if plan.copies else None
        self._groups: dict[int | None, list[TileGroup]] = {}

    def store(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Write the rows' keys and values, both (T, HK, D) float32, to their slots."""
        rows, pages, offsets = self._own
        if self._copies is None:
            self.kv.write(layer, pages, offsets, k, v)
            return
        self.kv.write(layer, pages, offsets, k[rows], v[rows])
        self.kv.copy(layer, *self._copies)
        if self._forked is not None:
            rows, pages, offsets = self._forked
            self.kv.write(layer, pages, offsets, k[rows], v[rows])

    def groups(self, window: int | None) -> list[TileGroup]:
        """Return the tiles and masks for layers with this sliding window (None: no window); built
        once a forward."""
        if window not in self._groups:
            self._groups[window] = _groups(self, window)
        return self._groups[window]


def _columns(slots: list[tuple[int, int, int]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows, pages, offsets = torch.tensor(slots).unbind(1)
    return rows, pages, offsets


def _groups(layout: Layout, window: int | None) -> list[TileGroup]:
    """Group short chains, forks and long chains apart: forks share pages with their chain, so
    theirs must be copied."""
    kinds: dict[tuple[bool, bool], list[PackedSpan]] = {}
    for span in layout.plan.spans:
        kinds.setdefault((len(span.rows) > TREE_TILES[-1], span.is_fork), []).append(span)
    fold = layout.num_heads // layout.num_key_heads
    groups = []
    for (is_long, _), spans in kinds.items():
        most = max(len(span.rows) for span in spans)
        height = CHUNK_TILE if is_long else next(h for h in TREE_TILES if h >= most and h * fold >= MIN_ROWS)
        groups.append(_group(layout, spans, height, window, whole=len(kinds) == 1))
    return groups


@dataclass(slots=True)
class _Tile:
    rows: list[int]
    pages: "array[int]"
    mask: np.ndarray  # (pages, height, S)


def _group(layout: Layout, spans: list[PackedSpan], height: int, window: int | None, whole: bool) -> TileGroup:
    tiles = [tile for span in spans for tile in _tiles(span, height, layout.kv.page_tokens, window)]
    tiles.sort(key=lambda tile: -len(tile.pages))
    pages = [page for tile in tiles for page in tile.pages]
    pair_tile = [number for number, tile in enumerate(tiles) for _ in tile.pages]
    columns: list[list[int]] = [[] for _ in tiles[0].pages]
    pair = 0
    for tile in tiles:
        for column, _ in zip(columns, tile.pages, strict=False):
            column.append(pair)
            pair += 1
    mask = np.concatenate([tile.mask for tile in tiles])
    pair_page: torch.Tensor | slice = torch.tensor(pages)
    low, width = min(pages), max(pages) - min(pages) + 1
    if pair == len(set(pages)) and 2 * pair >= width:  # run over the pages where they lie: no gathering
        at = np.array(pages) - low
        pair_page = slice(low, low + width)
        columns = [at[column].tolist() for column in columns]
        pair_tile = _spread(np.array(pair_tile), at, width).tolist()
        mask = _spread(mask, at, width)
    places = sorted((row, number * height + i) for number, tile in enumerate(tiles) for i, row in enumerate(tile.rows))
    return TileGroup(
        height=height,
        rows=None if whole else torch.tensor([row for row, _ in places]),
        places=torch.tensor([place for _, place in places]),
        num_tiles=len(tiles),
        pair_tile=torch.tensor(pair_tile),
        pair_page=pair_page,
        columns=[torch.tensor(column) for column in columns],
        mask=_expand(torch.from_numpy(mask), layout.num_heads, layout.num_key_heads),
    )


def _tiles(span: PackedSpan, height: int, size: int, window: int | None) -> list[_Tile]:
    """Cut a span into tiles; each sees the pages up to its last row. Padding rows see slot 0, to
    stay finite."""
    tiles = []
    for first in range(0, len(span.rows), height):
        rows = span.rows[first : first + height]
        position = span.position + first + np.arange(height)[:, None]  # (height, 1)
        num_pages = (span.position + first + len(rows) - 1) // size + 1
        slot = np.arange(num_pages * size)[None]
        seen = slot <= position
        if window is not None:
            seen &= slot > position - window
        seen[len(rows) :] = slot == 0
        mask = np.where(seen, np.float32(0), np.float32(-np.inf))
        tiles.append(_Tile(rows, span.pages[:num_pages], mask.reshape(height, num_pages, size).transpose(1, 0, 2)))
    return tiles


def _spread(values: np.ndarray, at: np.ndarray, width: int) -> np.ndarray:
    """Return a zero array (width, ...) with `values` (n, ...) at the indices `at`."""
    out = np.zeros((width, *values.shape[1:]), values.dtype)
    out[at] = values
    return out


def _expand(mask: torch.Tensor, num_heads: int, num_key_heads: int) -> torch.Tensor:
    """Repeat a mask for the heads: (NP, height, S) -> (NP * HK, R, S), as the products read it."""
    pairs, height, width = mask.shape
    fold = num_heads // num_key_heads
    wide = mask[:, None, :, None].expand(pairs, num_key_heads, height, fold, width)
    return wide.reshape(pairs * num_key_heads, height * fold, width)

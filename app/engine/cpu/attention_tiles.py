"""Lay out a packed forward through transformers' modules."""

from typing import NamedTuple

import numpy as np
import torch

from app.engine.packing import PackedBatch, PackedSpan
from kernels.attention.paged_attention import MIN_ROWS, Tile

HEIGHTS = (4, 8, 16)  # of the tile of a chain of at most 16 rows
CHUNK_HEIGHT = 32  # of the tiles of a longer one


class Kind(NamedTuple):
    window: int | None
    scale: float
    softcap: float | None


class Layout:
    def __init__(self, plan: PackedBatch, num_heads: int, num_key_heads: int) -> None:
        self.plan, self.kv = plan, plan.kv
        self.num_heads, self.num_key_heads = num_heads, num_key_heads
        self.kinds: dict[int, Kind] = {}
        self._tiles: dict[int | None, list[Tile]] = {}

    def store(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        self._write(layer, self.plan.own, k, v)
        if self.plan.copies:
            self.kv.copy(layer, *torch.tensor(self.plan.copies).unbind(1))
        if self.plan.forked:
            self._write(layer, self.plan.forked, k, v)

    def _write(self, layer: int, slots: list[tuple[int, int, int]], k: torch.Tensor, v: torch.Tensor) -> None:
        rows, pages, offsets = torch.tensor(slots).unbind(1)
        self.kv.write(layer, pages, offsets, k[rows], v[rows])

    def tiles(self, window: int | None) -> list[Tile]:
        if window not in self._tiles:
            self._tiles[window] = [tile for span in self.plan.spans for tile in self._cut(span, window)]
        return self._tiles[window]

    def _cut(self, span: PackedSpan, window: int | None) -> list[Tile]:
        """Padding rows see slot 0, to stay finite."""
        count, fold, size = len(span.rows), self.num_heads // self.num_key_heads, self.kv.page_tokens
        height = next((h for h in HEIGHTS if h >= count and h * fold >= MIN_ROWS), CHUNK_HEIGHT)
        tiles = []
        for first in range(0, count, height):
            rows = span.rows[first : first + height]
            position = span.position + first + np.arange(height)[:, None]  # (height, 1)
            num_pages = (span.position + first + len(rows) - 1) // size + 1
            slot = np.arange(num_pages * size)[None]
            seen = slot <= position
            if window is not None:
                seen &= slot > position - window
            seen[len(rows) :] = slot == 0
            mask = np.where(seen, np.float32(0), np.float32(-np.inf)).reshape(height, num_pages, size)
            pages = _places(span.pages[:num_pages].tolist())
            tiles.append(Tile(_places(rows), pages, self._for_heads(torch.from_numpy(mask))))
        return tiles

    def _for_heads(self, mask: torch.Tensor) -> torch.Tensor:
        height, num_pages, size = mask.shape
        fold = self.num_heads // self.num_key_heads
        wide = mask.transpose(0, 1)[:, None, :, None].expand(num_pages, self.num_key_heads, height, fold, size)
        return wide.reshape(num_pages * self.num_key_heads, height * fold, size)


def _places(numbers: list[int]) -> torch.Tensor | slice:
    first, end = numbers[0], numbers[0] + len(numbers)
    return slice(first, end) if numbers == [*range(first, end)] else torch.tensor(numbers)

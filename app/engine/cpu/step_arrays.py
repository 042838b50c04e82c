"""Turn a packed batch into a fused step's flat arrays, and hold its working memory."""

import numpy as np

from app.engine.packing import PackedBatch
from app.state import page_numbers
from kernels.cpu.attention import SPLIT, TILE, count_splits
from kernels.cpu.products.row_blocks import BLOCK, BLOCK_BYTES
from kernels.cpu.shapes import PARTS, Model, Room, Step
from kernels.cpu.simd import LANES
from kernels.cpu.threads import HEADER


def step_of(plan: PackedBatch, least_tiles: int = 1) -> Step:
    """Cut rows into tiles of at most TILE rows of one chain, their keys into splits.

    Tiles are lower if there are fewer than `least_tiles`, so that all threads have work.
    """
    height = TILE
    while height > 1 and sum(-(-len(span.rows) // height) for span in plan.spans) < least_tiles:
        height //= 2
    own = np.full((len(plan.ids), 2), -1, np.int64)
    for row, page, offset in plan.own:
        own[row] = page, offset
    rows: list[int] = []
    tiles: list[tuple[int, ...]] = []
    pages = page_numbers()
    units: list[tuple[int, int, int]] = []
    lines = 0
    for span in plan.spans:
        for top in range(0, len(span.rows), height):
            tile = span.rows[top : top + height]
            position = span.position + top
            splits = count_splits(position + len(tile))
            tiles.append((len(rows), len(tile), position, len(pages), len(units), splits))
            for split in range(splits):
                units.append((len(tiles) - 1, split, lines))
                lines += len(tile)
            rows += tile
        pages += span.pages
    return Step(
        ids=np.array(plan.ids, np.int64),
        positions=np.array(plan.positions, np.int64),
        own=own,
        copies=np.array(plan.copies, np.int64).reshape(-1, 2),
        forked=np.array(plan.forked, np.int64).reshape(-1, 3),
        tile_rows=np.array(rows, np.int64),
        tiles=np.array(tiles, np.int64).reshape(-1, 6),
        pages=np.array(pages, np.int64),
        units=np.array(units, np.int64).reshape(-1, 3),
        wanted=np.array(plan.wanted, np.int64),
        added=0 if plan.added is None else plan.added.ctypes.data,
    )


class Rooms:
    def __init__(self, model: Model, threads: int) -> None:
        fold = model.num_heads // model.num_key_heads
        self._model, self.threads = model, threads
        self._rows = self._lines = 0
        self._words = np.zeros(HEADER + PARTS * (model.num_layers + 2), np.int64)
        self._queries = np.empty((threads, TILE * fold, model.head_dim), np.float32)
        self._scores = np.empty((threads, TILE * fold, SPLIT), np.float32)
        self._columns = -(-model.vocab // LANES) * LANES

    def room(self, step: Step, lines: int = 0) -> tuple[Room, np.ndarray, np.ndarray]:
        """Return (the room, logits (N, V in whole blocks) float32, best (N,) int64); the caller keeps the last two.

        `lines`: a larger number of rows by splits of their keys, for further steps.
        """
        self._grow(len(step.ids), max(lines, int(step.tiles[step.units[:, 0], 1].sum())))
        self._words[HEADER:] = 0
        logits = np.empty((len(step.wanted), self._columns), np.float32)
        best = np.full(len(step.wanted), -1, np.int64)  # none, should a step end early
        return self._room._replace(threads=self.threads, logits=logits.ctypes.data, best=best), logits, best

    def read(self, wanted: int) -> np.ndarray:
        """Copy the last head's input (N, hidden) float32."""
        return self._update[:wanted].copy()

    def states(self, rows: int) -> np.ndarray:
        """View the first rows' states (rows, d) float32 between two layers, before any norm."""
        return self._hidden[:rows]

    def compact(self, rows: np.ndarray) -> None:
        """Keep only these rows (n,) int64, rising, between two layers, and move them up."""
        self._hidden[: len(rows)] = self._hidden[rows]
        self._normed[: len(rows)] = self._normed[rows]

    def normed(self, rows: int) -> np.ndarray:
        """Copy the first rows (rows, d) float32 of the last step's final norm."""
        return self._normed[:rows].copy()

    def _grow(self, rows: int, lines: int) -> None:
        if rows <= self._rows and lines <= self._lines:
            return
        rows, lines = max(rows, self._rows), max(lines, self._lines)
        m = self._model
        wide = m.num_heads * m.head_dim
        mixed = wide + 2 * m.num_key_heads * m.head_dim
        hidden, normed, update = (np.empty((rows, m.hidden), np.float32) for _ in range(3))
        columns, attended, gated = (np.empty((rows, width), np.float32) for width in (mixed, wide, m.inner))
        blocks, gated_blocks = (
            np.empty((rows, width // BLOCK, BLOCK_BYTES[m.row_form]), np.uint8)
            for width in (max(m.hidden, wide), m.inner)
        )
        sums, stats = (np.empty((lines * m.num_heads, width), np.float32) for width in (m.head_dim, 2))
        self._room = Room(
            threads=self.threads,
            words=self._words.ctypes.data,
            hidden=hidden.ctypes.data,
            normed=normed.ctypes.data,
            mixed=columns.ctypes.data,
            attended=attended.ctypes.data,
            gated=gated.ctypes.data,
            update=update.ctypes.data,
            blocks=blocks.ctypes.data,
            gated_blocks=gated_blocks.ctypes.data,
            sums=sums.ctypes.data,
            stats=stats.ctypes.data,
            queries=self._queries.ctypes.data,
            queries_bytes=self._queries[0].nbytes,
            scores=self._scores.ctypes.data,
            scores_bytes=self._scores[0].nbytes,
            logits=0,  # each step has its own
            best=np.zeros(0, np.int64),
        )
        self._held = (columns, attended, gated, blocks, gated_blocks, sums, stats)
        self._hidden, self._normed, self._update = hidden, normed, update
        self._rows, self._lines = rows, lines

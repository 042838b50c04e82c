"""From works to the flat arrays of one packed forward: ids, positions, KV slots, and who attends to what.

Every row attends to a chain. A sequence's tokens and its tree's main branch (always the first child) stand in its
own pages at the slots their positions name; each side branch is a fork: copies of the last pages with the branch's
own nodes in the slots of their positions. So "sees" is plain "stands at no later position", and a row's sums are
added in the same order whether it is a tree node or the end of a plain sequence.
"""

from dataclasses import dataclass, field

import numpy as np
import torch

from app.engine.kv import KVCache
from app.state import Fork, Tree, Work
from kernels.paged_attention import MIN_ROWS, TileGroup

TREE_TILES = (4, 8, 16)  # a chain of at most 16 rows gets one tile, all such chains of a batch the same height
CHUNK_TILE = 32


@dataclass(slots=True)
class Span:
    """A chain of packed rows at consecutive positions, and the pages they see."""

    rows: list[int]
    position: int  # of the first row
    pages: list[int]
    is_fork: bool = False


@dataclass(slots=True)
class Plan:
    """What a forward needs beside the weights; travels through the model to every attention layer."""

    kv: KVCache
    ids: torch.Tensor  # (T,) int64
    positions: torch.Tensor  # (T,) int64
    writes: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]  # (rows, pages, offsets), own pages before forks
    copies: tuple[torch.Tensor, torch.Tensor] | None  # (to, from) pages, after the first write
    spans: list[Span]
    num_heads: int
    num_key_heads: int
    calls: int = 0  # attention layers that used the plan
    _groups: dict[int | None, list[TileGroup]] = field(default_factory=dict)

    def store(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Write the rows' keys and values, both (T, HK, D), to their slots."""
        rows, pages, offsets = self.writes[0]
        if self.copies is None:
            self.kv.write(layer, pages, offsets, k, v)
            return
        self.kv.write(layer, pages, offsets, k[rows], v[rows])
        self.kv.copy(layer, *self.copies)
        rows, pages, offsets = self.writes[1]
        self.kv.write(layer, pages, offsets, k[rows], v[rows])

    def groups(self, window: int | None) -> list[TileGroup]:
        """The tiles and masks for layers with this sliding window; built once a forward."""
        if window not in self._groups:
            self._groups[window] = _groups(self, window)
        return self._groups[window]


def forks(tree: Tree) -> list[Fork]:
    """The side branches of a tree, one a leaf, each with the nodes that no earlier branch holds."""
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(tree.parents, start=1):
        children.setdefault(parent, []).append(node)
    if all(len(nodes) == 1 for nodes in children.values()):
        return []
    main = set(main_branch(tree))
    computed = set(main)
    found = []
    for leaf in range(1, len(tree) + 1):
        if leaf not in children and leaf not in computed:
            path = _path(tree, leaf)
            leaves = next(i for i, node in enumerate(path) if node not in main)
            first = next(i for i, node in enumerate(path) if node not in computed)
            computed.update(path)
            found.append(Fork(path, leaves, first))
    return found


def main_branch(tree: Tree) -> list[int]:
    """The nodes from below the root along first children: the branch of the highest survival at each step."""
    branch: list[int] = []
    for node, parent in enumerate(tree.parents, start=1):
        if parent == (branch[-1] if branch else 0):
            branch.append(node)
    return branch


def _path(tree: Tree, node: int) -> list[int]:
    path = []
    while node > 0:
        path.append(node)
        node = tree.parents[node - 1]
    return path[::-1]


def plan(works: list[Work], kv: KVCache, num_heads: int, num_key_heads: int) -> Plan:
    """Lay the works' rows out one after the other. Their sequences and forks hold their pages already."""
    ids: list[int] = []
    positions: list[int] = []
    spans: list[Span] = []
    own: list[tuple[int, int, int]] = []
    forked: list[tuple[int, int, int]] = []
    copies: list[tuple[int, int]] = []
    for work in works:
        base = len(ids) + len(work.tokens) - 1  # row of the root; node i's row is base + i
        below = work.start + len(work.tokens)  # position of depth 1
        main = main_branch(work.tree)
        rows = [*range(len(ids), base + 1), *(base + node for node in main)]
        depth = [0] * (1 + len(work.tree))
        for node, parent in enumerate(work.tree.parents, start=1):
            depth[node] = depth[parent] + 1
        ids += work.tokens
        ids += work.tree.tokens
        positions += range(work.start, below)
        positions += [below - 1 + d for d in depth[1:]]
        spans.append(Span(rows, work.start, work.sequence.pages))
        own += _slots(spans[-1], kv.page_tokens)
        for fork in work.forks:
            cut = (below + fork.leaves) // kv.page_tokens  # the sequence's own pages up to here
            pages = work.sequence.pages[:cut] + fork.pages
            copies += zip(fork.pages, work.sequence.pages[cut:], strict=False)
            whole = Span([base + node for node in fork.path], below, pages)
            forked += _slots(whole, kv.page_tokens)[fork.leaves :]
            spans.append(Span(whole.rows[fork.first :], below + fork.first, pages, is_fork=True))
    return Plan(
        kv=kv,
        ids=torch.tensor(ids),
        positions=torch.tensor(positions),
        writes=[_columns(own), _columns(forked)] if copies else [_columns(own)],
        copies=(torch.tensor([to for to, _ in copies]), torch.tensor([of for _, of in copies])) if copies else None,
        spans=spans,
        num_heads=num_heads,
        num_key_heads=num_key_heads,
    )


def _slots(span: Span, size: int) -> list[tuple[int, int, int]]:
    """(row, page, offset) of each of a span's rows."""
    return [(row, span.pages[p // size], p % size) for p, row in enumerate(span.rows, start=span.position)]


def _columns(slots: list[tuple[int, int, int]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows, pages, offsets = torch.tensor(slots).unbind(1)
    return rows, pages, offsets


def _groups(plan: Plan, window: int | None) -> list[TileGroup]:
    """Short chains, forks and long chains apart: forks share pages with their chain, so theirs must be gathered."""
    kinds: dict[tuple[bool, bool], list[Span]] = {}
    for span in plan.spans:
        kinds.setdefault((len(span.rows) > TREE_TILES[-1], span.is_fork), []).append(span)
    fold = plan.num_heads // plan.num_key_heads
    groups = []
    for (is_long, _), spans in kinds.items():
        most = max(len(span.rows) for span in spans)
        height = CHUNK_TILE if is_long else next(h for h in TREE_TILES if h >= most and h * fold >= MIN_ROWS)
        groups.append(_group(plan, spans, height, window, whole=len(kinds) == 1))
    return groups


@dataclass(slots=True)
class _Tile:
    rows: list[int]
    pages: list[int]
    mask: np.ndarray  # (pages, height, S)


def _group(plan: Plan, spans: list[Span], height: int, window: int | None, whole: bool) -> TileGroup:
    tiles = [tile for span in spans for tile in _tiles(span, height, plan.kv.page_tokens, window)]
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
        mask=_expand(torch.from_numpy(mask), plan.num_heads, plan.num_key_heads),
    )


def _tiles(span: Span, height: int, size: int, window: int | None) -> list[_Tile]:
    """Cut a span into tiles; each sees the pages up to its last row. Padding rows see slot 0, to stay finite."""
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
    """values (n, ...) at indices `at` of a zero array (width, ...)."""
    out = np.zeros((width, *values.shape[1:]), values.dtype)
    out[at] = values
    return out


def _expand(mask: torch.Tensor, num_heads: int, num_key_heads: int) -> torch.Tensor:
    """(NP, height, S) -> (NP * HK, R, S), as the products want it."""
    pairs, height, width = mask.shape
    fold = num_heads // num_key_heads
    wide = mask[:, None, :, None].expand(pairs, num_key_heads, height, fold, width)
    return wide.reshape(pairs * num_key_heads, height * fold, width)

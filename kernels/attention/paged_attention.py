"""Attend packed rows to their sequences' own pages, ragged, for verification: the plain torch
reference on a CPU.

    softmax(q K^T * scale + mask) V

A row's result is the same bits alone, in any batch, as a tree node and at any prefill chunking,
because every row meets the same arithmetic: keys sit in pages of fixed width, each (tile of
queries, page) pair is one matrix product of at least MIN_ROWS rows (fewer take another matrix
kernel with other rounding), the maximum is exact in any order, and a tile's pages are summed one
after the other. A page a row may not see adds exact zeros. Measured with MKL on AVX2 and on AVX-512
for head dims 1 to 256: so it is for all of 12 and more, and for 4 and 8.

This is also the specification of the kernel for GPUs.
"""

from dataclasses import dataclass

import torch

MIN_ROWS = 8  # rows of a product, queries times folded heads


@dataclass(slots=True)
class TileGroup:
    """Tiles of one height: NT tiles, NP (tile, page) pairs, R = height * H / HK rows a tile.

    Tiles are sorted by falling number of pages, so that the tiles with a j-th page are the first
    ones.
    """

    height: int
    rows: torch.Tensor | None  # (n,) int64, packed rows this group computes; None: all, in order
    places: torch.Tensor  # (n,) int64, each row's place in the tiles, < NT * height
    num_tiles: int
    pair_tile: torch.Tensor  # (NP,) int64
    pair_page: torch.Tensor | slice  # (NP,) int64; a slice when the pages lie side by side: nothing is copied
    columns: list[torch.Tensor]  # j-th: (tiles with a j-th page,) int64, the pair of that page
    mask: torch.Tensor  # (NP * HK, R, S) float32: 0 where the row sees the key, -inf where not


def paged_attention_reference(
    q: torch.Tensor,  # (T, H, D)
    k_pages: torch.Tensor,  # (P, HK, D, S)
    v_pages: torch.Tensor,  # (P, HK, S, D)
    groups: list[TileGroup],
    scale: float,
    softcap: float | None = None,
) -> torch.Tensor:  # (T, H, D)
    """Attend each packed row to the pages of its own sequence, in float32."""
    q = q * scale
    if len(groups) == 1:
        return _attend(q, k_pages, v_pages, groups[0], softcap)
    out = torch.empty_like(q)
    for group in groups:
        out[group.rows] = _attend(q[group.rows], k_pages, v_pages, group, softcap)
    return out


def _attend(
    q: torch.Tensor,  # (n, H, D), scaled
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    group: TileGroup,
    softcap: float | None,
) -> torch.Tensor:  # (n, H, D)
    num_key_heads, head_dim, width = k_pages.shape[1:]
    num_pairs = len(group.pair_tile)
    keys = k_pages[group.pair_page].reshape(num_pairs * num_key_heads, head_dim, width)
    values = v_pages[group.pair_page].reshape(num_pairs * num_key_heads, width, head_dim)
    queries = _fold(q, group, num_key_heads)[group.pair_tile].view(num_pairs * num_key_heads, -1, head_dim)
    if softcap is None:
        scores = torch.baddbmm(group.mask, queries, keys)  # (NP * HK, R, S)
    else:
        scores = torch.tanh(torch.bmm(queries, keys) / softcap).mul_(softcap).add_(group.mask)
    scores = scores.view(num_pairs, num_key_heads, -1, width)
    highest = _max_over_pages(scores.amax(-1, keepdim=True), group)
    weights = scores.sub_(highest).exp_()  # (NP, HK, R, S)
    sums = _sum_over_pages(weights.sum(-1, keepdim=True), group)
    out = torch.bmm(weights.view(num_pairs * num_key_heads, -1, width), values)
    out = _sum_over_pages(out.view(num_pairs, num_key_heads, -1, head_dim), group).div_(sums)
    return _unfold(out, group)


def _fold(q: torch.Tensor, group: TileGroup, num_key_heads: int) -> torch.Tensor:
    """Put rows into tiles, the query heads of one key head under each other: (n, H, D) -> (NT, HK,
    R, D)."""
    num_heads, head_dim = q.shape[1:]
    tiles = q.new_zeros(group.num_tiles * group.height, num_heads, head_dim)
    tiles[group.places] = q
    tiles = tiles.view(group.num_tiles, group.height, num_key_heads, -1, head_dim).transpose(1, 2)
    return tiles.reshape(group.num_tiles, num_key_heads, -1, head_dim).contiguous()  # a view if H is HK


def _unfold(out: torch.Tensor, group: TileGroup) -> torch.Tensor:
    """Take the rows out of their tiles: (NT, HK, R, D) -> (n, H, D)."""
    num_key_heads, _, head_dim = out.shape[1:]
    out = out.view(group.num_tiles, num_key_heads, group.height, -1, head_dim).transpose(1, 2)
    return out.reshape(group.num_tiles * group.height, -1, head_dim)[group.places]


def _max_over_pages(pairs: torch.Tensor, group: TileGroup) -> torch.Tensor:
    """Return each pair's tile's maximum: (NP, ...) -> (NP, ...)."""
    tiles = pairs[group.columns[0]]
    for column in group.columns[1:]:
        torch.maximum(tiles[: len(column)], pairs[column], out=tiles[: len(column)])
    return tiles[group.pair_tile]


def _sum_over_pages(pairs: torch.Tensor, group: TileGroup) -> torch.Tensor:
    """Add a tile's pages in order, so that the rounding never depends on the batch: (NP, ...) ->
    (NT, ...)."""
    tiles = pairs[group.columns[0]]
    for column in group.columns[1:]:
        tiles[: len(column)] += pairs[column]
    return tiles

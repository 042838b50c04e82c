"""Test ragged attention; run by ../test_device.py, in a process of its own."""

import dataclasses

import pytest
import torch

from kernels.attention.ragged_attention import (
    FLOAT32,
    PREFILL,
    VERIFY,
    AttentionTiling,
    Batch,
    ragged_attention,
    ragged_attention_reference,
)
from tests.kernels.device.places import DEVICE, DTYPES, INTERPRETED, TOLERANCE

SMALL = AttentionTiling(rows=16, keys=32, split_keys=0, num_warps=4, num_stages=2)  # many steps in few keys
SPLIT = dataclasses.replace(SMALL, split_keys=32)
CHAINS = [(37, 5), (0, 1), (62, 3), (130, 1)]  # (prefix, new rows) of each sequence
FOREST = [(37, 6), (0, 3), (63, 1), (122, 9)]


def inputs(spans, heads, dtype, page_slots=16, tree=False):
    """Return queries, keys, values and a batch whose pages lie in no order, among pages that must
    not be read."""
    num_heads, key_heads, head_dim = heads
    random = torch.Generator().manual_seed(len(spans) + num_heads + head_dim)
    pages_each = max(-(-sum(span) // page_slots) for span in spans) + 1
    pages = 2 * pages_each * len(spans)
    shape = (pages, page_slots, key_heads, head_dim)
    k, v = (torch.full(shape, torch.nan, dtype=dtype) for _ in range(2))
    blocks = torch.randperm(pages, generator=random)[: pages_each * len(spans)].view(len(spans), -1)
    for table, (prefix, rows) in zip(blocks, spans, strict=True):
        slot = torch.arange(prefix + rows)
        for cache in (k, v):
            fresh = torch.randn(prefix + rows, key_heads, head_dim, generator=random)
            cache[table[slot // page_slots], slot % page_slots] = fresh.to(dtype)
    num_rows = torch.tensor([rows for _, rows in spans])
    ancestors, depth = [], []
    for _, rows in spans:
        bits, heights = [1], [0]
        for j in range(1, rows):
            parent = int(torch.randint(0, j, (1,), generator=random))
            bits.append(bits[parent] | 1 << j if j < 63 else (bits[parent] | 1 << j) - (1 << 64))
            heights.append(heights[parent] + 1)
        ancestors += bits[:rows]
        depth += heights[:rows]
    batch = Batch(
        first_row=(num_rows.cumsum(0) - num_rows).int().to(DEVICE),
        num_rows=num_rows.int().to(DEVICE),
        prefix=torch.tensor([prefix for prefix, _ in spans], dtype=torch.int32, device=DEVICE),
        blocks=blocks.int().to(DEVICE),
        ancestors=torch.tensor(ancestors, dtype=torch.int64, device=DEVICE) if tree else None,
        depth=torch.tensor(depth, dtype=torch.int32, device=DEVICE) if tree else None,
        max_rows=int(num_rows.max()),
        max_keys=max(sum(span) for span in spans),
    )
    q = torch.randn(int(num_rows.sum()), num_heads, head_dim, generator=random).to(dtype)
    return q.to(DEVICE), k.to(DEVICE), v.to(DEVICE), batch


def check(spans, heads, dtype, tiling, tree=False, page_slots=16, window=0, softcap=0.0):
    q, k, v, batch = inputs(spans, heads, dtype, page_slots, tree)
    scale = heads[2] ** -0.5 * (3.0 if softcap else 1.0)  # scores large enough to feel the cap
    found = ragged_attention(q, k, v, batch, scale, window, softcap, tiling)
    expected = ragged_attention_reference(q, k, v, batch, scale, window, softcap)
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(2, 2, 16), (3, 1, 32), (4, 1, 64), (6, 2, 24)])
@pytest.mark.parametrize("tree", [False, True])
def test_every_row_attends_to_its_visible_keys(heads, tree, dtype):
    check(FOREST if tree else CHAINS, heads, dtype, SMALL, tree)


@pytest.mark.parametrize("tiling", [VERIFY, PREFILL, FLOAT32, SPLIT], ids=["verify", "prefill", "float32", "split"])
@pytest.mark.parametrize("tree", [False, True])
def test_every_tiling_gives_the_references_result(tiling, tree):
    check(FOREST if tree else [*CHAINS, (20, 40)], (4, 1, 32), torch.float32, tiling, tree)


@pytest.mark.parametrize("window", [1, 33])
@pytest.mark.parametrize("tiling", [SMALL, SPLIT, PREFILL], ids=["small", "split", "prefill"])
@pytest.mark.parametrize("tree", [False, True])
def test_a_window_counts_positions(window, tiling, tree):
    check(FOREST if tree else [*CHAINS, (20, 40)], (2, 1, 16), torch.float32, tiling, tree, window=window)


@pytest.mark.parametrize("dtype", DTYPES)
def test_scores_are_capped(dtype):
    check(FOREST, (4, 2, 32), dtype, SMALL, tree=True, softcap=2.0)
    check(CHAINS, (4, 2, 32), dtype, SPLIT, softcap=2.0, window=50)


@pytest.mark.parametrize("page_slots", [1, 5, 64])
def test_pages_of_any_width(page_slots):
    check(CHAINS, (2, 1, 16), torch.float32, SMALL, page_slots=page_slots)


def test_a_tree_of_64_rows_uses_every_bit():
    check([(10, 64)], (1, 1, 16), torch.float32, PREFILL, tree=True)


def test_sequences_without_rows_and_rows_without_a_sequence():
    for tiling in (SMALL, SPLIT):
        q, k, v, batch = inputs(CHAINS, (2, 1, 16), torch.float32)
        batch.num_rows[:] = torch.tensor([5, 0, 2, 1])
        found = ragged_attention(q, k, v, batch, 0.25, tiling=tiling)
        expected = ragged_attention_reference(q, k, v, batch, 0.25)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        assert not found[[5, 8]].any()


def test_queries_may_be_columns_of_a_wider_product():
    q, k, v, batch = inputs(CHAINS, (2, 1, 16), torch.float32)
    wide = torch.cat([q.flatten(1), torch.full((len(q), 32), torch.nan, device=DEVICE)], 1)
    view = wide[:, :32].view(len(q), 2, 16)
    assert torch.equal(ragged_attention(view, k, v, batch, 0.25), ragged_attention(q, k, v, batch, 0.25))


def one_sequence(batch, i, row=0, rows=None):
    """Return `rows` rows from `row` on of sequence i as a batch; the rows before them are now its
    prefix."""
    rows = int(batch.num_rows[i]) if rows is None else rows
    return dataclasses.replace(
        batch,
        first_row=batch.first_row[:1] * 0,
        num_rows=batch.num_rows[:1] * 0 + rows,
        prefix=batch.prefix[i : i + 1] + row,
        blocks=batch.blocks[i : i + 1],
        max_rows=rows,
        max_keys=int(batch.prefix[i]) + row + rows,
    )


@pytest.mark.parametrize("tiling", [SMALL, SPLIT], ids=["small", "split"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sequence_has_the_same_bits_in_any_batch(tiling, dtype):
    q, k, v, batch = inputs(CHAINS, (4, 2, 32), dtype)
    together = ragged_attention(q, k, v, batch, 0.2, tiling=tiling)
    for i, (_, rows) in enumerate(CHAINS):
        mine = slice(int(batch.first_row[i]), int(batch.first_row[i]) + rows)
        alone = ragged_attention(q[mine], k, v, one_sequence(batch, i), 0.2, tiling=tiling)
        assert torch.equal(alone, together[mine])


@pytest.mark.skipif(INTERPRETED, reason="numpy rounds a row of a product by its place among the rows")
@pytest.mark.parametrize("tiling", [VERIFY, SMALL, SPLIT, FLOAT32], ids=["verify", "small", "split", "float32"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_alone(tiling, dtype):
    q, k, v, batch = inputs(CHAINS, (4, 2, 32), dtype)
    together = ragged_attention(q, k, v, batch, 0.2, tiling=tiling)
    for i, (_, rows) in enumerate(CHAINS):
        for row in range(rows):
            place = int(batch.first_row[i]) + row
            alone = ragged_attention(q[place:][:1], k, v, one_sequence(batch, i, row, 1), 0.2, tiling=tiling)
            assert torch.equal(alone[0], together[place])


def test_arguments_that_do_not_fit_are_refused():
    q, k, v, batch = inputs(CHAINS, (4, 2, 32), torch.float32)
    tree = dataclasses.replace(batch, ancestors=batch.first_row.long(), depth=batch.first_row, max_rows=65)
    for arguments in (
        (q[:, :3], k, v, batch),
        (q, k, v[..., :16], batch),
        (q.half(), k, v, batch),
        (q, k.transpose(0, 1), v.transpose(0, 1), batch),
        (q.transpose(0, 1), k, v, batch),
        (q, k, v, dataclasses.replace(batch, depth=batch.first_row)),
        (q, k, v, tree),
    ):
        with pytest.raises(ValueError):
            ragged_attention(*arguments, 0.2)
    with pytest.raises(ValueError):
        ragged_attention(q, k, v, batch, 0.2, tiling=dataclasses.replace(SMALL, split_keys=40))

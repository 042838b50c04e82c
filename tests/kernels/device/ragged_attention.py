"""Test ragged attention; run by ../test_device.py, in a process of its own."""

import dataclasses

import numpy as np
import pytest
import torch

from kernels.attention.ragged_attention import (
    FLOAT32,
    PREFILL,
    VERIFY,
    AttentionTiling,
    Batch,
    ragged_attention_reference,
)
from kernels.attention.ragged_attention import ragged_attention as launch
from kernels.attention.work_list import ITEM, work_list
from tests.kernels.device.places import DEVICE, DTYPES, INTERPRETED, TOLERANCE

SMALL = AttentionTiling(rows=16, keys=32, split_keys=0, num_warps=4, num_stages=2)  # many steps in few keys
SPLIT = dataclasses.replace(SMALL, split_keys=32)
CHAINS = [(37, 5), (0, 1), (62, 3), (130, 1)]  # (prefix, new rows) of each sequence
FOREST = [(37, 6), (0, 3), (63, 1), (122, 9)]


def listed(q, k, batch, tiling):
    """Return the work of a batch."""
    integers = (x.cpu().numpy() for x in (batch.first_row, batch.num_rows, batch.prefix))
    return work_list(*integers, len(q), q.shape[1] // k.shape[2], tiling.rows, tiling.split_keys)


def ragged_attention(q, k, v, batch, scale, window=0, softcap=0.0, tiling=VERIFY):
    work = listed(q, k, batch, tiling).on_device(DEVICE)
    return launch(q, k, v, batch, work, scale, window, softcap, tiling)


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
@pytest.mark.parametrize("heads", [(2, 2, 16), (3, 1, 32), (6, 2, 24)])
@pytest.mark.parametrize("tree", [False, True])
def test_every_row_attends_to_its_visible_keys(heads, tree, dtype):
    check(FOREST if tree else CHAINS, heads, dtype, SMALL, tree)


@pytest.mark.parametrize("tiling", [VERIFY, PREFILL, FLOAT32, SPLIT], ids=["verify", "prefill", "float32", "split"])
@pytest.mark.parametrize("tree", [False, True])
def test_every_tiling_gives_the_references_result(tiling, tree):
    check(FOREST if tree else [*CHAINS, (20, 40)], (4, 1, 32), torch.float32, tiling, tree)


@pytest.mark.parametrize("window", [1, 33])
@pytest.mark.parametrize("tiling", [SPLIT, PREFILL], ids=["split", "prefill"])
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


@pytest.mark.parametrize("tree", [False, True])
def test_bits_do_not_depend_on_programs_order_or_room(tree):
    """A captured step has room for more items and parts than there are, and shares them among fixed programs."""
    q, k, v, batch = inputs(FOREST if tree else CHAINS, (4, 2, 32), torch.float32, tree=tree)
    work = listed(q, k, batch, SPLIT).on_device(DEVICE)
    expected = launch(q, k, v, batch, work, 0.2, tiling=SPLIT)
    assert work.num_parts > len(q), "some have several slices"
    items = work.items.flip(0)
    beyond = torch.full((5, ITEM), 2**30, dtype=torch.int32, device=DEVICE)  # would be read from anywhere
    for programs in (1, 3, 999):
        roomy = dataclasses.replace(
            work, items=torch.cat([items, beyond]), num_parts=2 * work.num_parts, num_programs=programs
        )
        out = torch.full_like(expected, 7.0)
        assert launch(q, k, v, batch, roomy, 0.2, tiling=SPLIT, out=out) is out
        assert torch.equal(out, expected)


def test_one_slice_gives_the_bits_of_several():
    """Keys that a row may not see lie in slices of their own or not, by the rows behind it."""
    q, k, v, batch = inputs([(20, 24)], (4, 2, 32), torch.float32)
    cut = dataclasses.replace(SMALL, split_keys=32)
    assert {int(n) for n in listed(q, k, batch, cut).slices} == {2}
    together = ragged_attention(q, k, v, batch, 0.2, tiling=cut)
    alone = ragged_attention(q[:8], k, v, one_sequence(batch, 0, 0, 8), 0.2, tiling=cut)
    assert torch.equal(alone, together[:8])


def test_a_list_covers_every_slice_of_every_row_once():
    counts, prefixes = np.array([5, 0, 1, 9, 64]), np.array([60, 5, 0, 127, 1000])
    firsts = np.array([2, 0, 7, 8, 20])  # some rows are of no sequence
    for fold, rows, split in ((4, 16, 64), (1, 16, 0), (32, 16, 1024), (3, 32, 128)):
        found = work_list(firsts, counts, prefixes, 90, fold, rows, split)
        slices = [-(-(p + n) // split) if split else 1 for p, n in zip(prefixes, counts, strict=True)]
        covered = [
            (sequence, part, one)
            for sequence, part, tile, _ in found.items.tolist()
            for one in range(tile * rows, min((tile + 1) * rows, counts[sequence] * fold))
        ]
        assert len(covered) == len({*covered})
        assert {*covered} == {
            (i, s, one) for i, n in enumerate(counts) for s in range(slices[i]) for one in range(n * fold)
        }
        expected = np.zeros(90, int)
        for first, n, count in zip(firsts, counts, slices, strict=True):
            expected[first : first + n] = count
        assert found.slices.tolist() == expected.tolist()
        places = [p + s for p, n in zip(found.place, found.slices, strict=True) if n > 1 for s in range(n)]
        assert places == list(range(found.num_parts))


def test_a_sequences_pages_may_lie_in_any_row_of_the_table():
    q, k, v, batch = inputs(CHAINS, (4, 2, 32), torch.float32)
    rows = np.array([5, 0, 3, 1])
    table = torch.full((6, batch.blocks.shape[1]), 1 << 20, dtype=torch.int32, device=DEVICE)
    table[torch.from_numpy(rows).to(DEVICE)] = batch.blocks
    integers = (x.cpu().numpy() for x in (batch.first_row, batch.num_rows, batch.prefix))
    work = work_list(*integers, len(q), 2, SPLIT.rows, SPLIT.split_keys, rows).on_device(DEVICE)
    found = launch(q, k, v, dataclasses.replace(batch, blocks=table), work, 0.2, tiling=SPLIT)
    assert torch.equal(found, ragged_attention(q, k, v, batch, 0.2, tiling=SPLIT))


def test_arguments_that_do_not_fit_are_refused():
    q, k, v, batch = inputs(CHAINS, (4, 2, 32), torch.float32)
    for arguments in (
        (q[:, :3], k, v, batch),
        (q, k, v[..., :16], batch),
        (q.half(), k, v, batch),
        (q, k.transpose(0, 1), v.transpose(0, 1), batch),
        (q.transpose(0, 1), k, v, batch),
        (q, k, v, dataclasses.replace(batch, depth=batch.first_row)),
    ):
        with pytest.raises(ValueError):
            launch(*arguments, listed(q, k, batch, VERIFY).on_device(DEVICE), 0.2)
    with pytest.raises(ValueError):
        ragged_attention(q, k, v, batch, 0.2, tiling=dataclasses.replace(SMALL, split_keys=40))

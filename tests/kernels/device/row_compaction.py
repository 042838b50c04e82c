"""Test the dropping of rows; run by ../test_device.py, in a process of its own."""

import pytest
import torch

from kernels.tree.row_compaction import row_compaction, row_compaction_reference
from tests.kernels.device.places import DEVICE, DTYPES


def inputs(rows, columns, dtype, share=0.6):
    random = torch.Generator().manual_seed(rows * columns)
    hidden = torch.randn(rows, columns, generator=random).to(dtype).to(DEVICE)
    keep = (torch.rand(rows, generator=random) < share).to(DEVICE)
    cuts = torch.randint(0, rows + 1, (3,), generator=random).sort().values.tolist()
    cu_rows = torch.tensor([0, *cuts, rows], dtype=torch.int32, device=DEVICE)
    positions = torch.randint(1, 10**6, (rows,), generator=random).to(DEVICE)
    return hidden, keep, cu_rows, positions


def check(arguments, capacity=None):
    found, expected = (f(*arguments, capacity) for f in (row_compaction, row_compaction_reference))
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (7, 33), (23, 64), (16, 1024), (5, 2880)])
def test_kept_rows_move_up_in_order(rows, columns, dtype):
    check(inputs(rows, columns, dtype))


@pytest.mark.parametrize("share", [0.0, 1.1])
def test_all_or_none(share):
    check(inputs(9, 40, torch.float32, share))


def test_capacity_bounds_the_rows():
    arguments = inputs(20, 40, torch.float32)
    kept = int(arguments[1].sum())
    for capacity in (kept, kept + 2, 20):
        check(arguments, capacity)
        assert row_compaction(*arguments, capacity).hidden.shape == (capacity, 40)


def test_positions_of_either_width_and_rows_that_lie_apart():
    hidden, keep, cu_rows, positions = inputs(12, 64, torch.float32)
    check((hidden[:, :40], keep, cu_rows, positions.int()))
    with pytest.raises(ValueError):
        row_compaction(hidden[:, ::2], keep, cu_rows, positions)


def test_the_reference_on_an_example():
    hidden = torch.arange(12.0, device=DEVICE).view(6, 2)
    keep = torch.tensor([1, 0, 0, 1, 1, 0], dtype=torch.bool, device=DEVICE)
    cu_rows = torch.tensor([0, 2, 3, 6], dtype=torch.int32, device=DEVICE)
    found = row_compaction_reference(hidden, keep, cu_rows, torch.arange(10, 16, device=DEVICE), 4)
    assert found.hidden.tolist() == [[0, 1], [6, 7], [8, 9], [0, 0]]
    assert found.positions.tolist() == [10, 13, 14, 0]
    assert found.cu_rows.tolist() == [0, 1, 1, 3]

"""Test the moving of accepted paths; run by ../test_device.py, in a process of its own."""

import pytest
import torch

from kernels.attention.kv_commit import kv_commit, kv_commit_reference
from tests.kernels.device.places import DEVICE, DTYPES


def inputs(prefixes, paths, dtype, page_slots, columns=(2, 24), layers=3):
    random = torch.Generator().manual_seed(len(prefixes) + page_slots)
    width = max(len(path) for path in paths) + 1  # what is behind a path must not be read
    pages_each = (max(prefixes) + 64) // page_slots + 1
    blocks = torch.randperm(pages_each * len(prefixes), generator=random).view(len(prefixes), -1)
    shape = (layers, blocks.numel(), page_slots, *columns)
    k, v = (torch.randn(shape, generator=random).to(dtype).to(DEVICE) for _ in range(2))
    table = torch.tensor([path + [10**6] * (width - len(path)) for path in paths])
    lengths = torch.tensor([len(path) for path in paths])
    return k, v, *(x.int().to(DEVICE) for x in (blocks, torch.tensor(prefixes), table, lengths))


def check(prefixes, paths, dtype=torch.float32, page_slots=16, columns=(2, 24)):
    k, v, *rest = inputs(prefixes, paths, dtype, page_slots, columns)
    expected_k, expected_v = k.clone(), v.clone()
    kv_commit_reference(expected_k, expected_v, *rest)
    kv_commit(k, v, *rest)
    assert torch.equal(k, expected_k)
    assert torch.equal(v, expected_v)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("page_slots", [1, 4, 16])
def test_a_path_is_moved_behind_the_prefix(page_slots, dtype):
    check([5, 0, 30], [[0, 2, 3, 5], [0, 1, 2], [0, 7, 19, 20, 33]], dtype, page_slots)


def test_slots_may_be_source_and_target():
    check([3], [[0, *range(2, 40)]])
    check([3], [[0, *range(9, 25)]], page_slots=4)


def test_nothing_moves_for_chains_and_empty_paths():
    k, v, *rest = inputs([5, 9], [[0, 1, 2, 3], []], torch.float32, 4)
    before = k.clone(), v.clone()
    kv_commit(k, v, *rest)
    assert torch.equal(k, before[0]) and torch.equal(v, before[1])


@pytest.mark.parametrize("columns", [(1, 1), (3, 20), (4, 64), (5, 80)])
def test_any_number_of_columns_is_moved(columns):
    check([2, 11], [[0, 3], [0, 2, 4]], columns=columns)


def test_the_reference_keeps_the_path():
    k, v, *rest = inputs([6], [[0, 2, 5]], torch.float32, 4)
    flat = [x[:, rest[0][0].long()].flatten(1, 2) for x in (k, v)]  # slots in order
    kv_commit_reference(k, v, *rest)
    for before, now in zip(flat, (x[:, rest[0][0].long()].flatten(1, 2) for x in (k, v)), strict=True):
        assert torch.equal(now[:, :9], before[:, [0, 1, 2, 3, 4, 5, 6, 8, 11]])


def test_arguments_that_do_not_fit_are_refused():
    k, v, blocks, prefix, path, length = inputs([5], [[0, 2]], torch.float32, 4)
    with pytest.raises(ValueError):
        kv_commit(k[:, :, ::2], v[:, :, ::2], blocks, prefix, path, length)
    with pytest.raises(ValueError):
        kv_commit(k, v[1:], blocks, prefix, path, length)
    with pytest.raises(ValueError):
        kv_commit(k, v, blocks, prefix, path.repeat(2, 2)[:, ::2], length)

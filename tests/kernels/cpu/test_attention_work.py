"""Test the compiled list of attention's work against its reference, number by number."""

import numpy as np
import pytest

pytest.importorskip("torch")

from kernels.attention.work_list import work_list
from kernels.cpu.attention_work import list_work, write_work
from kernels.host.step_rows import Entries


@pytest.mark.parametrize("split_keys", [0, 8])
def test_work_is_the_references(split_keys: int) -> None:
    random = np.random.default_rng(1)
    for _ in range(200):
        size = int(random.integers(1, 6))
        lengths, nodes = random.integers(1, 9, size), random.integers(0, 5, size)
        counts, starts, table_rows = lengths + nodes, random.integers(0, 40, size), random.permutation(size)
        ids, parents = np.zeros(counts.sum(), np.int64), np.zeros(nodes.sum(), np.int64)
        entries = Entries(lengths, nodes, starts, table_rows, np.ones(size, np.bool_), ids, parents)
        firsts = counts.cumsum() - counts
        for least, most in ((1, 6), (7, 100)):
            own = np.where((least <= counts) & (counts <= most), counts, 0)
            expected = work_list(firsts, own, starts, len(ids), 3, 4, split_keys, table_rows)
            items, slices, place, parts = list_work(entries, least, most, 3, 4, split_keys)
            assert items.tolist() == expected.items.tolist() and parts == expected.num_parts
            assert slices.tolist() == expected.slices.tolist() and place.tolist() == expected.place.tolist()


def test_what_a_list_leaves_over_is_zero() -> None:
    room = np.full((3, 4), 7, np.int32), np.full(5, 7, np.int32), np.full(5, 7, np.int32)
    one = np.ones(2, np.int32)
    write_work(np.ones((1, 4), np.int32), one, one, *room)
    assert [array.tolist() for array in room] == [[[1] * 4, [0] * 4, [0] * 4], [1, 1, 0, 0, 0], [1, 1, 0, 0, 0]]

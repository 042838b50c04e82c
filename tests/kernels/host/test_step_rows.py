"""Test the compiled writing of a step's rows against its reference, row by row."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.host.step_rows import BITS, NOWHERE, Entries, Rows, write_rows
from kernels.sampling.parameters import PARAMETERS, parameter_arrays

PAGE_TOKENS = 4
TABLE_ROWS = 5
LONGS = ("ancestors", "position")


def write_rows_reference(entries: Entries, page_table: np.ndarray, page_tokens: int) -> list[list[int]]:
    """Return [id, depth, ancestors, position, slot, whether its token is wanted] of each row; the specification."""
    rows: list[list[int]] = []
    parents = iter(entries.parents.tolist())
    for length, nodes, start, at, is_final in zip(*(one.tolist() for one in entries[:5]), strict=True):
        above = [*range(-1, length - 1), *(length - 1 + next(parents) for _ in range(nodes))]
        paths: list[list[int]] = []
        for row, parent in enumerate(above):
            paths.append([*(paths[parent] if parent >= 0 else ()), row])
            depth, (page, offset) = len(paths[row]) - 1, divmod(start + row, page_tokens)
            sees = sum(1 << one for one in paths[row]) if row < BITS else 0
            slot = int(page_table[at, page]) * page_tokens + offset
            is_wanted = is_final and row >= length - 1
            rows.append([int(entries.ids[len(rows)]), depth, sees, start + depth, slot, int(is_wanted)])
    return rows


@st.composite
def steps(draw: st.DrawFn) -> Entries:
    sizes = draw(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 6)), min_size=1, max_size=4))
    if draw(st.booleans()):
        sizes.append((BITS + draw(st.integers(-1, 2)), 0))
    lengths, nodes = (np.array(own) for own in zip(*sizes, strict=True))
    count = len(sizes)
    return Entries(
        lengths,
        nodes,
        np.array([draw(st.integers(0, 9)) for _ in range(count)]),
        np.array(draw(st.permutations(range(TABLE_ROWS)))[:count]),
        np.array([bool(own) or draw(st.booleans()) for own in nodes]),
        np.array([draw(st.integers(0, 99)) for _ in range(int(lengths.sum() + nodes.sum()))], np.int64),
        np.array([draw(st.integers(0, node)) for own in nodes for node in range(own)], np.int64),
    )


def room_for(names: Iterable[str], size: int, **types: Any) -> dict[str, np.ndarray]:
    """Make arrays full of what is overwritten."""
    return {name: np.full(size, 7, types.get(name, np.int32)) for name in names}


@settings(max_examples=200, deadline=None)  # the first one compiles
@given(steps(), st.integers(0, 3))
def test_rows_are_the_references_and_the_rest_is_padding(entries: Entries, room: int) -> None:
    page_table = np.arange(TABLE_ROWS * 40, dtype=np.int32).reshape(TABLE_ROWS, 40) * 3
    kinds = {name: kind for name, (kind, _) in PARAMETERS.items()}
    choices = {name: np.arange(TABLE_ROWS).astype(kind) + 1 for name, kind in kinds.items()}
    size = len(entries.ids) + room
    rows = Rows(**room_for(Rows._fields, size, **dict.fromkeys(LONGS, np.int64)))
    chosen = room_for(PARAMETERS, size, **kinds)
    write_rows(entries, page_table, PAGE_TOKENS, parameter_arrays(choices), rows, parameter_arrays(chosen))
    expected = write_rows_reference(entries, page_table, PAGE_TOKENS)
    written = (rows.ids, rows.depth, rows.ancestors.view(np.uint64), rows.positions, rows.slots)
    for array, values, idle in zip(written, zip(*expected, strict=True), (0, 0, 0, 0, NOWHERE), strict=False):
        assert array.tolist() == [*values, *[idle] * room]
    wanted = [at for at, row in enumerate(expected) if row[-1]]
    assert rows.wanted.tolist() == wanted + [0] * (size - len(wanted))
    assert rows.position.tolist() == [expected[at][3] + 1 for at in wanted] + [0] * (size - len(wanted))
    counts = (entries.lengths + entries.nodes).tolist()
    owners = [at for at, count in zip(entries.table_rows.tolist(), counts, strict=True) for _ in range(count)]
    for name, (_, idle) in PARAMETERS.items():
        assert chosen[name].tolist() == [owners[at] + 1 for at in wanted] + [idle] * (size - len(wanted))
    firsts = np.cumsum([0, *counts])[:-1].tolist()
    rest = [0] * (size - len(counts))
    assert rows.first_row.tolist() == firsts + rest and rows.prefix.tolist() == entries.starts.tolist() + rest
    assert rows.narrow.tolist() == [count * (count <= BITS) for count in counts] + rest
    assert rows.wide.tolist() == [count * (count > BITS) for count in counts] + rest

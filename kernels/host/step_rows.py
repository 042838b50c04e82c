"""Write a step's rows as a device reads them.

The rows of one entry lie side by side: its own tokens, each below the one before, then the nodes of its tree, the
first below the last token. Row r, counted from the entry's first, has

    depth(r) = depth(above(r)) + 1            above(r): the row below which it stands
    sees(r) = sees(above(r)) | 1 << r         0 from row 64 on: a prompt's chunk, without a tree
    position(r) = start + depth(r)
    slot(r) = pages[(start + r) // S] * S + (start + r) % S

for `start` cached tokens and pages of S tokens. Wanted are the tokens behind an entry's last token and each node.
"""

from typing import NamedTuple

import numpy as np

from kernels.jit import entry
from kernels.sampling.parameters import ParameterArrays, padding_values

BITS = 64  # of what a row sees
NOWHERE = -1  # slot of a padding row
FLOATS, INTS, LONGS = (padding_values(kind) for kind in (np.float32, np.int32, np.int64))


class Entries(NamedTuple):
    """B batch entries, of T rows and N nodes in all."""

    lengths: np.ndarray  # (B,) int64, own tokens
    nodes: np.ndarray  # (B,) int64, of the tree
    starts: np.ndarray  # (B,) int64, cached tokens
    table_rows: np.ndarray  # (B,) int64, of the page table and of the choices
    finals: np.ndarray  # (B,) bool, whether tokens are wanted of it
    ids: np.ndarray  # (T,) int64
    parents: np.ndarray  # (N,) int64, 0: the entry's last token, else the node of that number


class Rows(NamedTuple):
    """The arrays of a step; entries and rows beyond the step's are padding."""

    ids: np.ndarray  # int32, as all without another type; padded with 0, as all without another padding
    depth: np.ndarray
    ancestors: np.ndarray  # int64
    positions: np.ndarray
    slots: np.ndarray  # padded with NOWHERE
    wanted: np.ndarray  # rows whose tokens are wanted
    position: np.ndarray  # int64, where the wanted tokens are to stand
    first_row: np.ndarray  # of each entry
    prefix: np.ndarray  # its cached tokens
    narrow: np.ndarray  # its rows, where these are no more than BITS
    wide: np.ndarray  # its rows, where these are more


@entry
def write_rows(
    entries: Entries,
    page_table: np.ndarray,
    page_tokens: int,
    choices: ParameterArrays,
    rows: Rows,
    chosen: ParameterArrays,
) -> None:
    """Write the rows of a step, and the sampling parameters of those wanted to `chosen`.

    page_table: (R, P) int32; choices: of its R rows.
    """
    first, node, want = 0, 0, 0
    for b in range(len(entries.lengths)):
        length, start, at = entries.lengths[b], entries.starts[b], entries.table_rows[b]
        count = length + entries.nodes[b]
        rows.first_row[b], rows.prefix[b] = first, start
        rows.narrow[b], rows.wide[b] = (count, 0) if count <= BITS else (0, count)
        for row in range(count):
            above = row - 1
            if row >= length:
                above = length - 1 + entries.parents[node]
                node += 1
            depth, sees = 0, np.int64(0)
            if above >= 0:
                depth, sees = rows.depth[first + above] + 1, rows.ancestors[first + above]
            here, slot = first + row, start + row
            rows.ids[here] = entries.ids[here]
            rows.depth[here] = depth
            rows.ancestors[here] = sees | np.int64(1) << np.int64(row) if row < BITS else 0
            rows.positions[here] = start + depth
            rows.slots[here] = page_table[at, slot // page_tokens] * page_tokens + slot % page_tokens
            if entries.finals[b] and row >= length - 1:
                rows.wanted[want], rows.position[want] = here, start + depth + 1
                for i in range(len(choices.floats)):
                    chosen.floats[i][want] = choices.floats[i][at]
                for i in range(len(choices.ints)):
                    chosen.ints[i][want] = choices.ints[i][at]
                for i in range(len(choices.longs)):
                    chosen.longs[i][want] = choices.longs[i][at]
                want += 1
        first += count
    size = len(entries.lengths)
    rows.first_row[size:], rows.prefix[size:], rows.narrow[size:], rows.wide[size:] = 0, 0, 0, 0
    rows.ids[first:], rows.depth[first:], rows.ancestors[first:], rows.positions[first:] = 0, 0, 0, 0
    rows.slots[first:] = NOWHERE
    rows.wanted[want:], rows.position[want:] = 0, 0
    for i in range(len(chosen.floats)):
        chosen.floats[i][want:] = FLOATS[i]
    for i in range(len(chosen.ints)):
        chosen.ints[i][want:] = INTS[i]
    for i in range(len(chosen.longs)):
        chosen.longs[i][want:] = LONGS[i]

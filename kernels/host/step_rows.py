"""Write a step's rows as a device reads them: what stands in each, what it sees, and how its token is chosen.

The rows of one entry lie side by side: its own tokens, each below the one before, then the nodes of its tree, the
first of them below the last token. Row r, counted from the entry's first, has

    depth(r) = depth(above(r)) + 1            above(r): the row below which it stands
    sees(r) = sees(above(r)) | 1 << r         0 from row 64 on: so long an entry is a prompt's chunk, without a tree
    position(r) = start + depth(r)
    slot(r) = pages[(start + r) // S] * S + (start + r) % S

for `start` cached tokens and pages of S tokens. Wanted are the tokens behind an entry's own last one and behind each
node.
"""

from typing import NamedTuple

import numpy as np

from kernels.jit import entry

BITS = 64  # of what a row sees
NOWHERE = -1  # slot of a padding row


class Entries(NamedTuple):
    """B batch entries, of T rows and N nodes in all."""

    lengths: np.ndarray  # (B,) int64, own tokens
    nodes: np.ndarray  # (B,) int64, of the tree
    starts: np.ndarray  # (B,) int64, cached tokens
    table_rows: np.ndarray  # (B,) int64, of the page table and of the choices
    finals: np.ndarray  # (B,) bool, whether tokens are wanted of it
    ids: np.ndarray  # (T,) int64
    parents: np.ndarray  # (N,) int64, 0: the entry's last token, else the node of that number


class Choices(NamedTuple):
    """How tokens are chosen, by row of the page table or of the step (`kernels.sampling.choices.Limits`)."""

    temperature: np.ndarray  # float32
    top_k: np.ndarray  # int32
    top_p: np.ndarray  # float32
    log_min_p: np.ndarray  # float32
    seed: np.ndarray  # int64
    choice: np.ndarray  # int64


class Rows(NamedTuple):
    """The arrays of a step, which hold as many entries and rows or more; what is left over is padding."""

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
    entries: Entries, page_table: np.ndarray, page_tokens: int, choices: Choices, rows: Rows, chosen: Choices
) -> None:
    """Write the rows of a step, and the choices of those wanted to `chosen`, padded with the likeliest token's.

    page_table: (R, P) int32; choices: (R,) each.
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
                chosen.temperature[want], chosen.top_k[want] = choices.temperature[at], choices.top_k[at]
                chosen.top_p[want], chosen.log_min_p[want] = choices.top_p[at], choices.log_min_p[at]
                chosen.seed[want], chosen.choice[want] = choices.seed[at], choices.choice[at]
                want += 1
        first += count
    size = len(entries.lengths)
    rows.first_row[size:], rows.prefix[size:], rows.narrow[size:], rows.wide[size:] = 0, 0, 0, 0
    rows.ids[first:], rows.depth[first:], rows.ancestors[first:], rows.positions[first:] = 0, 0, 0, 0
    rows.slots[first:] = NOWHERE
    rows.wanted[want:], rows.position[want:] = 0, 0
    chosen.temperature[want:], chosen.top_k[want:], chosen.top_p[want:] = 0.0, 0, 1.0
    chosen.log_min_p[want:], chosen.seed[want:], chosen.choice[want:] = -np.inf, 0, 0

"""Pack batch entries into the flat lists of one forward: ids, positions, KV slots, attended spans.

A sequence's tokens and its tree's main branch stand in its own pages, at the slots of their positions; each side
branch is a fork: copies of the last pages, with the branch's nodes. So a row's sums have one order in a tree and in a
plain sequence.
"""

from array import array
from dataclasses import dataclass, field

import numpy as np

from app.engine.kv.pages import KVCache
from app.state import BatchEntry, Fork, Tree


@dataclass(slots=True)
class PackedSpan:
    rows: list[int]
    position: int  # of the first row
    pages: "array[int]"
    is_fork: bool = False


@dataclass(slots=True)
class PackedBatch:
    kv: KVCache
    ids: list[int] = field(default_factory=list)  # T
    positions: list[int] = field(default_factory=list)  # T
    spans: list[PackedSpan] = field(default_factory=list)
    own: list[tuple[int, int, int]] = field(default_factory=list)  # slots written first
    copies: list[tuple[int, int]] = field(default_factory=list)  # (to, from) pages, copied second
    forked: list[tuple[int, int, int]] = field(default_factory=list)  # slots in the copies, written last
    wanted: list[int] = field(default_factory=list)  # rows whose logits are wanted
    added: np.ndarray | None = None  # (T, hidden) float32, added to the rows' embeddings


def forks(tree: Tree) -> list[Fork]:
    """List a tree's side branches, one a leaf, each with the nodes that no earlier branch holds."""
    inner = set(tree.parents)
    if len(inner) == len(tree):  # no two nodes have one parent: a chain
        return []
    main = set(tree.main_branch())
    computed = set(main)
    found = []
    for leaf in range(1, len(tree) + 1):
        if leaf not in inner and leaf not in computed:
            path = tree.path(leaf)
            leaves = next(i for i, node in enumerate(path) if node not in main)
            first = next(i for i, node in enumerate(path) if node not in computed)
            computed.update(path)
            found.append(Fork(path, leaves, first))
    return found


def plan(works: list[BatchEntry], kv: KVCache) -> PackedBatch:
    out = PackedBatch(kv)
    for work in works:
        base = len(out.ids) + len(work.tokens) - 1  # row of the root; node i's row is base + i
        below = work.start + len(work.tokens)  # position of depth 1
        main = work.tree.main_branch()
        own = PackedSpan(
            [*range(len(out.ids), base + 1), *(base + i for i in main)], work.start, work.sequence.pages[:]
        )
        out.ids += work.tokens
        out.ids += work.tree.tokens
        out.positions += range(work.start, below)
        out.positions += [below - 1 + depth for depth in work.tree.depths()[1:]]
        out.spans.append(own)
        out.own += _slots(own, kv.page_tokens)
        out.wanted += range(base, base + 1 + len(work.tree)) if work.final else ()
        for fork in work.forks:
            cut = (below + fork.leaves) // kv.page_tokens  # the sequence's own pages up to here
            pages = work.sequence.pages[:cut] + fork.pages
            out.copies += zip(fork.pages, work.sequence.pages[cut:], strict=False)
            whole = PackedSpan([base + node for node in fork.path], below, pages)
            out.forked += _slots(whole, kv.page_tokens)[fork.leaves :]
            out.spans.append(PackedSpan(whole.rows[fork.first :], below + fork.first, pages, is_fork=True))
    return out


def _slots(span: PackedSpan, size: int) -> list[tuple[int, int, int]]:
    return [(row, span.pages[p // size], p % size) for p, row in enumerate(span.rows, start=span.position)]

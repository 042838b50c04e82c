"""From works to the flat lists of one packed forward: ids, positions, KV slots, and who attends to what.

Every row attends to a chain. A sequence's tokens and its tree's main branch (always the first child) stand in its
own pages at the slots their positions name; each side branch is a fork: copies of the last pages with the branch's
own nodes in the slots of their positions. So "sees" is plain "stands at no later position", and a row's sums are
added in the same order whether it is a tree node or the end of a plain sequence.
"""

from dataclasses import dataclass, field

import numpy as np

from app.engine.kv.pages import KVCache
from app.state import BatchEntry, Fork, Tree


@dataclass(slots=True)
class PackedSpan:
    """A chain of packed rows at consecutive positions, and the pages they see."""

    rows: list[int]
    position: int  # of the first row
    pages: list[int]
    is_fork: bool = False


@dataclass(slots=True)
class PackedBatch:
    """What a forward needs beside the weights. Slots are (row, page, offset)."""

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
    """The side branches of a tree, one a leaf, each with the nodes that no earlier branch holds."""
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(tree.parents, start=1):
        children.setdefault(parent, []).append(node)
    if all(len(nodes) == 1 for nodes in children.values()):
        return []
    main = set(main_branch(tree))
    computed = set(main)
    found = []
    for leaf in range(1, len(tree) + 1):
        if leaf not in children and leaf not in computed:
            path = _path(tree, leaf)
            leaves = next(i for i, node in enumerate(path) if node not in main)
            first = next(i for i, node in enumerate(path) if node not in computed)
            computed.update(path)
            found.append(Fork(path, leaves, first))
    return found


def main_branch(tree: Tree) -> list[int]:
    """The nodes from below the root along first children: the branch of the highest survival at each step."""
    branch: list[int] = []
    for node, parent in enumerate(tree.parents, start=1):
        if parent == (branch[-1] if branch else 0):
            branch.append(node)
    return branch


def _path(tree: Tree, node: int) -> list[int]:
    path = []
    while node > 0:
        path.append(node)
        node = tree.parents[node - 1]
    return path[::-1]


def plan(works: list[BatchEntry], kv: KVCache) -> PackedBatch:
    """Lay the works' rows out one after the other. Their sequences and forks hold their pages already."""
    out = PackedBatch(kv)
    for work in works:
        base = len(out.ids) + len(work.tokens) - 1  # row of the root; node i's row is base + i
        below = work.start + len(work.tokens)  # position of depth 1
        main = main_branch(work.tree)
        own = PackedSpan([*range(len(out.ids), base + 1), *(base + i for i in main)], work.start, work.sequence.pages)
        depth = [0] * (1 + len(work.tree))
        for node, parent in enumerate(work.tree.parents, start=1):
            depth[node] = depth[parent] + 1
        out.ids += work.tokens
        out.ids += work.tree.tokens
        out.positions += range(work.start, below)
        out.positions += [below - 1 + d for d in depth[1:]]
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
    """(row, page, offset) of each of a span's rows."""
    return [(row, span.pages[p // size], p % size) for p, row in enumerate(span.rows, start=span.position)]

"""Drop tree nodes in the middle of a forward if the target will almost surely reject them.

At a checkpoint each node's token is tested against its parent's hidden state; a rejected node leaves, with all nodes
below it. A wrong rejection costs accepted tokens only: the walk ends at the parent, whose row gives the target's own
token (design D1). Cache slots that a dropped row leaves unwritten are never read.
"""

from typing import NamedTuple, Protocol

import numpy as np

from app.engine.early_exit.controller import ExitReport
from app.engine.packing import PackedBatch, PackedSpan
from app.state import BatchEntry


class Checkpoint(NamedTuple):
    layer: int  # layers passed
    rest: float  # the share of a row's cost that comes after


class Predictor(Protocol):
    checkpoints: tuple[Checkpoint, ...]  # rising

    def rejects(self, layer: int, states: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Return the tokens to reject, (n,) bool.

        states: (n, d) float32, the parents' hidden states after `layer` layers; tokens: (n,) int64.
        """
        ...


class _Node(NamedTuple):
    row: int
    parent: int  # its row
    token: int
    work: BatchEntry
    number: int  # in its tree


class RowPruner:
    def __init__(self, predictor: Predictor, works: list[BatchEntry]) -> None:
        self.layers = tuple(one.layer for one in predictor.checkpoints)
        self.took_s = 0.0
        self._predictor = predictor
        self._rest = {one.layer: one.rest for one in predictor.checkpoints}
        self._left: list[tuple[float, int, int]] = []
        self._nodes: list[_Node] = []
        self._size = 0  # rows of the forward
        for work in works:
            root = self._size + len(work.tokens) - 1
            self._size = root + 1 + len(work.tree)
            if work.may_exit:
                pairs = enumerate(zip(work.tree.tokens, work.tree.parents, strict=True), start=1)
                self._nodes += [_Node(root + i, root + parent, token, work, i) for i, (token, parent) in pairs]
        self._there = np.arange(self._size)  # (T,) int64, the rows left, by their first numbers

    def keep(self, layer: int, states: np.ndarray) -> np.ndarray | None:
        """Return the rows to go on with, rising int64 places among those left; None: all.

        states: (T, d) float32 after `layer` layers. Adds each batch entry's rejected nodes to its `pruned`.
        """
        if not self._nodes:
            return None
        places = np.full(self._size, -1, np.int64)  # where each row of the forward stands among those left
        places[self._there] = np.arange(len(self._there))
        parents, tokens = (np.array([node[i] for node in self._nodes], np.int64) for i in (1, 2))
        gone = self._drop(self._predictor.rejects(layer, states[places[parents]], tokens).tolist())
        if not gone:
            return None
        stays = np.ones(len(self._there), bool)
        stays[places[gone]] = False
        self._left.append((self._rest[layer], len(stays), len(stays) - len(gone)))
        self._there = self._there[stays]
        return np.flatnonzero(stays)

    def report(self) -> ExitReport:
        return ExitReport(self.took_s, tuple(self._left))

    def _drop(self, rejected: list[bool]) -> list[int]:
        gone: set[int] = set()
        for node, is_rejected in zip(self._nodes, rejected, strict=True):  # parents stand before their children
            if is_rejected or node.parent in gone:
                gone.add(node.row)
                node.work.pruned.add(node.number)
        self._nodes = [node for node in self._nodes if node.row not in gone]
        return sorted(gone)


def without(plan: PackedBatch, rows: np.ndarray) -> PackedBatch:
    """Keep these rows alone, (T',) int64, rising.

    A chain's last rows leave first. A fork without rows of its own leaves with its copies.
    """
    places = np.full(len(plan.ids), -1, np.int64)
    places[rows] = np.arange(len(rows))
    to = places.tolist()
    spans = [
        PackedSpan([to[row] for row in span.rows if to[row] >= 0], span.position, span.pages, span.is_fork)
        for span in plan.spans
        if to[span.rows[0]] >= 0
    ]
    pages = {page for span in spans if span.is_fork for page in span.pages}
    return PackedBatch(
        plan.kv,
        [plan.ids[row] for row in rows],
        [plan.positions[row] for row in rows],
        spans,
        [(to[row], page, offset) for row, page, offset in plan.own if to[row] >= 0],
        [(page, of) for page, of in plan.copies if page in pages],
        [(to[row], page, offset) for row, page, offset in plan.forked if to[row] >= 0 and page in pages],
        [to[row] for row in plan.wanted if to[row] >= 0],
    )

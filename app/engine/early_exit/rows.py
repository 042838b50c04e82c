"""Drop rows in the middle of a forward: tree nodes that will almost surely be rejected.

At a checkpoint, after some of the layers, a predictor gives the chance that the target chooses a
node's token, from the hidden state of the node's parent. Along a path these chances multiply to the
node's survival; nodes below their batch entry's `floor` leave, and all below them. A node that
should have stayed costs its accepted tokens and nothing else: the walk ends at its parent, whose
row gives the target's own token (design D1). Slots of the KV cache that a dropped row would have
written in later layers lie beyond what is accepted, so they are never read.
"""

from typing import NamedTuple, Protocol

import numpy as np

from app.engine.packing import PackedBatch, PackedSpan
from app.state import BatchEntry


class Predictor(Protocol):
    """A source of the chances that draft tokens are right, from the target's states half way."""

    layers: tuple[int, ...]  # the checkpoints: after so many layers, rising

    def chances(self, layer: int, states: np.ndarray, tokens: np.ndarray, priors: np.ndarray) -> np.ndarray:
        """Return the chances that the tokens are right if all before them are, (n,) in 0 ... 1.

        states: (n, d) float32, hidden states after `layer` layers where the target chooses;
        tokens: (n,) int64; priors: (n,) float64, the same chances by the drafters' confidence.
        """
        ...


class _Node(NamedTuple):
    row: int
    parent: int  # its row
    token: int
    prior: float
    floor: float
    work: BatchEntry
    number: int  # in its tree


class RowPruner:
    """The tree nodes of one forward at its checkpoints (see `app.engine.cpu.forward.Checkpoints`)."""

    def __init__(self, predictor: Predictor, works: list[BatchEntry]) -> None:
        self.layers = predictor.layers
        self.took_s = 0.0
        self._predictor = predictor
        self._nodes: list[_Node] = []
        self._size = 0  # rows of the forward
        for work in works:
            root = self._size + len(work.tokens) - 1
            self._size = root + 1 + len(work.tree)
            if work.final and work.floor > 0.0:
                self._nodes += _nodes(work, root)
        self._there = np.arange(self._size)  # (T,) int64, the rows left, by their first numbers

    def keep(self, layer: int, states: np.ndarray) -> np.ndarray | None:
        """Return the rows to go on with, rising int64 places among those left; None: all.

        states: (T, d) float32, theirs after `layer` layers. Each batch entry's `pruned` gets its
        nodes that leave.
        """
        places = np.full(self._size, -1, np.int64)
        places[self._there] = np.arange(len(self._there))
        if not self._nodes:
            return None
        parents, tokens = (np.array([node[i] for node in self._nodes], np.int64) for i in (1, 2))
        priors = np.array([node.prior for node in self._nodes])
        chances = self._predictor.chances(layer, states[places[parents]], tokens, priors)
        stays = np.ones(len(self._there), bool)
        stays[places[self._drop(chances.tolist())]] = False
        if stays.all():
            return None
        self._there = self._there[stays]
        return np.flatnonzero(stays)

    def _drop(self, chances: list[float]) -> list[int]:
        """Take out the nodes below their floor, and all below them; return their rows.

        A chance that is not in 0 ... 1 counts as 0.
        """
        survival: dict[int, float] = {}  # by row
        gone: list[int] = []
        for node, chance in zip(self._nodes, chances, strict=True):  # parents stand before their children
            survival[node.row] = survival.get(node.parent, 1.0) * (chance if 0.0 <= chance <= 1.0 else 0.0)
            if survival[node.row] < node.floor:
                gone.append(node.row)
                node.work.pruned[node.number] = survival[node.row]
        left = set(gone)
        self._nodes = [node for node in self._nodes if node.row not in left]
        return gone


def without(plan: PackedBatch, rows: np.ndarray) -> PackedBatch:
    """Return the packed batch with these rows alone, (T',) int64, rising.

    Of a chain the last rows leave first. A fork whose own rows are gone takes its copies with it.
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


def _nodes(work: BatchEntry, root: int) -> list[_Node]:
    survival = [1.0, *work.tree.survival]
    return [
        _Node(
            root + node,
            root + parent,
            work.tree.tokens[node - 1],
            survival[node] / survival[parent] if survival[parent] > 0.0 else 0.0,
            work.floor,
            work,
            node,
        )
        for node, parent in enumerate(work.tree.parents, start=1)
    ]

"""Drop rows in the middle of a forward: tree nodes whose token, and so all after it, will almost surely be rejected.

At a checkpoint, after some of the layers, a predictor looks at the hidden state of each node's parent and says how
likely the target is to say the node's token there. Along a path these chances multiply to the node's survival; nodes
below their work's `floor` go, and with them all that stand below. A node that should have stayed costs its accepted
tokens and nothing else: the walk ends at its parent, whose row gives the target's own token (design D1). Slots of the
KV cache that a dropped row would have written in later layers lie beyond what is accepted, so nobody reads them.
"""

from typing import NamedTuple, Protocol

import numpy as np

from app.engine.packing import PackedBatch, PackedSpan
from app.state import BatchEntry


class Predictor(Protocol):
    """Says how likely draft tokens are to be right, from what the target has computed so far."""

    layers: tuple[int, ...]  # the checkpoints: after so many layers, rising

    def chances(self, layer: int, states: np.ndarray, tokens: np.ndarray, priors: np.ndarray) -> np.ndarray:
        """(n,) in 0 ... 1: how likely the target says tokens[i] (n,) where its hidden state after `layer` layers is
        states[i] (n, d), if it says all before it; priors[i] (n,) is what its drafters' confidence says to that."""
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
    """One forward's tree nodes at its checkpoints (see `app.engine.cpu.forward.Checkpoints`)."""

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
        self._there = np.arange(self._size)  # rows, as they were numbered at first, that are still there

    def keep(self, layer: int, states: np.ndarray) -> np.ndarray | None:
        """The rows to go on with, of those that are there, rising; None: all. states: theirs (T, d) after so many
        layers. Works note their nodes that go."""
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
        """Take the nodes below their floor out, and all below them; their rows. What is no number is rejected."""
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
    """The plan with these rows alone, rising; of a chain the last ones go first. A fork whose own rows are gone takes
    its copies with it."""
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

"""Drop rows in the middle of a forward: tree nodes that will almost surely be rejected.

At a checkpoint, after some of the layers, the chance is asked for that the target chooses a node's
token, from the hidden state of the node's parent; after as many layers or more the answer is acted
on. Along a path these chances multiply to the node's survival; nodes below what their row still
costs leave, and all below them. A node that should have stayed costs its accepted tokens and
nothing else: the walk ends at its parent, whose row gives the target's own token (design D1). Slots
of the KV cache that a dropped row would have written in later layers lie beyond what is accepted,
so they are never read.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from app.engine.early_exit.controller import ExitReport
from app.engine.packing import PackedBatch, PackedSpan
from app.state import BatchEntry


class Checkpoint(NamedTuple):
    """A look at a pass, in layers passed."""

    look: int  # where states are read
    act: int  # where rows leave by them
    rest: float  # the share of a row's cost that comes after `act`


class Decisions(Protocol):
    """A source of the chances that draft tokens are right, in step with a pass or beside it."""

    checkpoints: tuple[Checkpoint, ...]  # rising

    def ask(
        self, look: int, states: np.ndarray, tokens: np.ndarray, priors: np.ndarray
    ) -> Callable[[], tuple[np.ndarray, float]]:
        """Ask for the chances that the tokens are right if all before them are, at a checkpoint.

        states: (n, d) float32, hidden states after `look` layers where the target chooses, for the
        callee to keep; tokens: (n,) int64; priors: (n,) float64, the same chances by the drafters'
        confidence. What is returned waits for the answer: the chances, (n,) in 0 ... 1, and the
        seconds that finding them takes from a pass that goes on meanwhile.
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

    def __init__(self, decisions: Decisions, works: list[BatchEntry]) -> None:
        self.layers = tuple(sorted({layer for one in decisions.checkpoints for layer in (one.look, one.act)}))
        self.took_s = 0.0
        self._decisions = decisions
        self._asked: dict[Checkpoint, tuple[list[int], Callable[[], tuple[np.ndarray, float]]]] = {}
        self._left: list[tuple[float, int, int]] = []
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
        stays = np.ones(len(self._there), bool)
        for checkpoint in self._decisions.checkpoints:
            if checkpoint.look == layer:
                self._ask(checkpoint, states)
            if checkpoint.act == layer and checkpoint in self._asked:
                stays[self._places()[self._answered(checkpoint)]] = False
        if stays.all():
            return None
        self._there = self._there[stays]
        return np.flatnonzero(stays)

    def report(self) -> ExitReport:
        """Return what the checkpoints took and saved."""
        return ExitReport(self.took_s, tuple(self._left))

    def _ask(self, checkpoint: Checkpoint, states: np.ndarray) -> None:
        if not self._nodes:
            return
        parents, tokens = (np.array([node[i] for node in self._nodes], np.int64) for i in (1, 2))
        priors = np.array([node.prior for node in self._nodes])
        answer = self._decisions.ask(checkpoint.look, states[self._places()[parents]], tokens, priors)
        self._asked[checkpoint] = [node.row for node in self._nodes], answer

    def _answered(self, checkpoint: Checkpoint) -> list[int]:
        """Take what was asked at a checkpoint, and drop nodes by it; return their rows."""
        rows, answer = self._asked.pop(checkpoint)
        chances, took_s = answer()
        self.took_s += took_s
        before = self._size - sum(before - after for _, before, after in self._left)
        gone = self._drop(dict(zip(rows, chances.tolist(), strict=True)), checkpoint.rest)
        if gone:
            self._left.append((checkpoint.rest, before, before - len(gone)))
        return gone

    def _places(self) -> np.ndarray:
        """Return where each row of the forward stands among those left, (T,) int64; -1: it left."""
        places = np.full(self._size, -1, np.int64)
        places[self._there] = np.arange(len(self._there))
        return places

    def _drop(self, chances: dict[int, float], rest: float) -> list[int]:
        """Take out the nodes below their floor, and all below them; return their rows.

        chances: by row, for the nodes still there and perhaps others; one that is not in 0 ... 1
        counts as 0.
        """
        survival: dict[int, float] = {}  # by row
        gone: list[int] = []
        for node in self._nodes:  # parents stand before their children
            chance = chances[node.row]
            survival[node.row] = survival.get(node.parent, 1.0) * (chance if 0.0 <= chance <= 1.0 else 0.0)
            if survival[node.row] < node.floor * rest:
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

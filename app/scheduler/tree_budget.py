"""Decide how much of each tree is worth its rows in a step, by marginal gain (design D5)."""

from collections.abc import Sequence as Listed
from dataclasses import dataclass
from itertools import accumulate
from operator import add, truediv
from typing import Protocol

from app.engine.step_costs import StepCosts
from app.state import MAX_NODES, Sequence, Tree

STEP_NODES = 256  # of all trees, that a step chooses from: to weigh more of them costs more than they bring
LEAST_NODES, MOST_NODES = 4, 32  # of one tree


@dataclass(frozen=True, slots=True)
class BatchRows:
    base: int  # rows without any node
    most: int  # rows of the whole step
    chunk: int  # of `base`, rows of prompts
    costs: StepCosts
    base_s: float = 0.0  # see `cut`
    row_s: Listed[float] = ()  # by tree, the seconds of reading that each of its nodes adds
    is_pipelined: bool = False  # whether the drafts of other sequences are made meanwhile


class BatchSelection(Protocol):
    def most_nodes(self, sequences: int) -> int:
        """Return the nodes of one tree that are chosen from in a step of so many sequences."""
        ...

    def select(self, sequences: Listed[Sequence], trees: Listed[Tree], rows: BatchRows) -> Listed[int | None]:
        """Return the nodes of each sequence's tree; None leaves the sequence out of the step."""
        ...


class PaceSelection:
    def most_nodes(self, sequences: int) -> int:
        return min(MOST_NODES, max(LEAST_NODES, STEP_NODES // max(1, sequences)))

    def select(self, sequences: Listed[Sequence], trees: Listed[Tree], rows: BatchRows) -> Listed[int | None]:
        return cut(trees, rows.base, rows.costs, rows.most, rows.base_s, rows.row_s)


class WholeSelection:
    """Verify all of every tree, as baselines do; where a step lacks rows, the largest trees lose nodes."""

    def most_nodes(self, sequences: int) -> int:
        return MAX_NODES

    def select(self, sequences: Listed[Sequence], trees: Listed[Tree], rows: BatchRows) -> Listed[int | None]:
        kept = [len(tree.tokens) for tree in trees]
        for _ in range(rows.base + sum(kept) - rows.most):
            kept[kept.index(max(kept))] -= 1
        return kept


def cut(
    trees: Listed[Tree],
    base_rows: int,
    costs: StepCosts,
    max_rows: int,
    base_s: float = 0.0,
    row_s: Listed[float] = (),
) -> list[int]:
    """Return how many nodes of each tree to verify; the fewest at equal worth.

    They are the n best of all by survival, for the n that maximises (sequences + their survival) / (seconds(base_rows
    + n) + base_s), over all n, since seconds() has steps. `base_s` adds the reading of contexts and takes off the rows
    of prompts, which are among `base_rows` and are not spared by a token. `row_s`: by tree, the seconds of reading of
    each node, which reduce its worth at the pace without nodes.
    """
    survival: list[float] = []
    owners: list[int] = []
    for i, tree in enumerate(trees):
        survival += accumulate(tree.survival, min)  # never a child before its parent
        owners += [i] * len(tree.survival)
    value, sequences = survival, len(trees)
    if any(row_s):
        pace = sequences / (costs.seconds(base_rows) + base_s)
        value = [s - pace * row_s[owner] for s, owner in zip(survival, owners, strict=True)]
    order = sorted(range(len(value)), key=value.__getitem__, reverse=True)  # stable, reverse too
    del order[max(0, max_rows - base_rows) :]
    tokens = accumulate(map(survival.__getitem__, order), initial=float(sequences))
    seconds = costs.span(base_rows, len(order) + 1)
    if base_s:
        nodes_s = (row_s[owners[index]] if row_s else 0.0 for index in order)
        seconds = [*map(add, seconds, accumulate(nodes_s, initial=base_s))]
    paces = list(map(truediv, tokens, seconds))
    best_n = paces.index(max(paces))
    if best_n == len(owners):
        return [len(tree.survival) for tree in trees]
    kept = [0] * len(trees)
    for index in order[:best_n]:
        kept[owners[index]] += 1
    return kept

"""Simulate early exit: which draft rows leave a pass at its checkpoints, and what the pass takes then.

At a checkpoint a wrong draft row leaves with the chance `found` and a right one with `lost`; rows behind it in the
tree leave, too. A row that has left costs nothing in the layers after the checkpoint: what they cost is that of their
rows (`StepCosts.seconds`). Judging rows costs operations beside the pass, and a fixed time to compact the batch. One
draw for each row serves all checkpoints, so a row that looks wrong early looks wrong late.
"""

import random
from collections.abc import Callable
from collections.abc import Sequence as Listed
from dataclasses import dataclass
from statistics import NormalDist

from app.engine.early_exit.controller import ExitReport
from app.engine.step_costs import StepCosts
from app.state import BatchEntry, Tree

NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A place in the layers: the part of them behind which rows leave, and the area under its ROC."""

    at: float
    auc: float


@dataclass(frozen=True, slots=True)
class ExitCosts:
    """The checkpoints; the part of right rows that leaves, and what judging takes: parts of a row, and a fixed time."""

    checkpoints: tuple[Checkpoint, ...]
    lost: float
    look: float
    fixed_s: float

    def found(self, one: Checkpoint) -> float:
        """Return the part of wrong rows that leave at a checkpoint: scores of right and wrong rows are normal."""
        return NORMAL.cdf(2.0**0.5 * NORMAL.inv_cdf(one.auc) + NORMAL.inv_cdf(self.lost))


class Exits:
    """Let rows leave the passes of one target."""

    def __init__(self, costs: ExitCosts, seed: int = 0) -> None:
        """Let rows leave as `costs` say."""
        self._costs = costs
        self._draws = random.Random(seed)
        self._report = ExitReport()

    @property
    def rest(self) -> float:
        """Return the part of a row's cost that comes after the first checkpoint."""
        return 1.0 - min((one.at for one in self._costs.checkpoints), default=1.0)

    def report(self) -> ExitReport:
        """Return what the checkpoints of the last pass took and saved."""
        return self._report

    def pass_s(
        self, works: Listed[BatchEntry], right: Callable[[BatchEntry], Listed[bool]], costs: StepCosts
    ) -> tuple[float, float]:
        """Fill the entries' `pruned`; return the pass's seconds without contexts, and its mean rows.

        `right` tells for each node of an entry's tree whether the target agrees.
        """
        rows = sum(len(work.tokens) + len(work.tree) for work in works)
        silent = sum(work.silent for work in works)  # these never leave
        if not any(work.may_exit for work in works):
            self._report = ExitReport()
            return costs.seconds(rows, silent), rows
        draws = {id(work): [self._draws.random() for _ in work.tree.tokens] for work in works}
        known = {id(work): right(work) for work in works}
        before_at, seconds, mean, took_s = 0.0, 0.0, 0.0, 0.0
        left: list[tuple[float, int, int]] = []
        for one in self._costs.checkpoints:
            seconds += (one.at - before_at) * costs.seconds(rows, silent)
            mean += (one.at - before_at) * rows
            nodes = sum(len(work.tree) - len(work.pruned) for work in works)
            took_s += self._costs.fixed_s + costs.seconds(rows + round(self._costs.look * nodes)) - costs.seconds(rows)
            found = self._costs.found(one)
            for work in works:
                if work.may_exit:
                    _leave(
                        work,
                        [
                            draw < (self._costs.lost if is_right else found)
                            for draw, is_right in zip(draws[id(work)], known[id(work)], strict=True)
                        ],
                    )
            after = sum(len(work.tokens) + len(work.tree) - len(work.pruned) for work in works)
            left.append((1.0 - one.at, rows, after))
            before_at, rows = one.at, after
        seconds += (1.0 - before_at) * costs.seconds(rows, silent)
        mean += (1.0 - before_at) * rows
        self._report = ExitReport(took_s, tuple(left))
        return seconds + took_s, mean


def right_nodes(tree: Tree, tokens: Listed[int], begin: int) -> list[bool]:
    """Tell for each node whether it and all before it are the text's `tokens` from `begin` on."""
    depths = tree.depths()
    found = [True]
    for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True), start=1):
        at = begin + depths[node] - 1
        found.append(found[parent] and at < len(tokens) and tokens[at] == token)
    return found[1:]


def _leave(work: BatchEntry, gone: Listed[bool]) -> None:
    """Drop these nodes and all below them."""
    for node, (is_gone, parent) in enumerate(zip(gone, work.tree.parents, strict=True), start=1):
        if is_gone or parent in work.pruned:
            work.pruned.add(node)

"""Decide when early exit pays, and the survival below which a row leaves (design D5).

Batch entries and step costs go in, each entry's `floor` comes out. The rule is the one that chose
the rows, with what is known better by then: behind a checkpoint a row still costs a part of its
price, and a token is worth the step's seconds a token. `auto` lets a step have checkpoints where
the rows expected wrong are worth more, in the layers left, than checkpoints took (FASER's rule,
papers 2.2), and where steps of about as many draft tokens gained by them. Knows no tensors.
"""

import math
from collections.abc import Callable
from collections.abc import Sequence as Listed
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from app.engine.step_costs import StepCosts
from app.mean_error import MeanError
from app.state import BatchEntry, Tree, Verdict

Mode = Literal["auto", "on", "off"]
DECAY = 0.95  # of the mean gain of checkpoints, at a new one
TRIES = 8  # checkpoints before they are judged,
EVERY = 64  # then one in so many steps where they do not pay: only trying shows that they pay again


class ExitReport(NamedTuple):
    """What the checkpoints of a pass took and saved."""

    took_s: float = 0.0
    left: tuple[tuple[float, int, int], ...] = ()  # each time rows left: (`rest` there, rows before, rows after)


@dataclass(slots=True)
class _Gain:
    """The gain of checkpoints in steps of about as many draft tokens."""

    seconds: float = 0.0  # decaying mean of what one saved, less what it took and the tokens it cost
    took_s: float = 0.0  # decaying mean of what one took
    seen: int = 0
    passed: int = 0  # steps without one since


class EarlyExitController:
    """The floors of a batch's entries, and whether they pay.

    For the thread that runs the target.
    """

    def __init__(
        self, mode: Mode = "off", rest: float = 0.0, exits: Callable[[], ExitReport] = lambda: ExitReport()
    ) -> None:
        """Start with no checkpoint seen.

        `rest`: the share of a row's cost that comes after the first checkpoint; 0: the target has
        none. `exits` returns what the checkpoints of the last pass took and saved.
        """
        self.dropped = self.looked_at = 0  # nodes
        self.error: Final = MeanError()  # of what passes with checkpoints were expected to take
        self.cut = 0  # of those dropped, the right ones that a verdict ended above
        self._mode = mode if rest > 0.0 else "off"
        self._rest = rest
        self._exits = exits
        self._gains: dict[int, _Gain] = {}  # by bit length of the draft tokens

    def allow(self, works: list[BatchEntry], costs: StepCosts, *, is_wanted: bool = True) -> None:
        """Set the entries' floor if dropping rows of this batch may pay.

        `is_wanted`: the scheduler's policy wants it; `on` disregards that.
        """
        if (
            self._mode == "off"
            or not any(work.tree.tokens for work in works)
            or (self._mode == "auto" and not (is_wanted and self._may_pay(works, costs)))
        ):
            return
        floor = self._pace(works, costs) * _row_s(works, costs)
        for work in works:
            work.floor = floor if work.final else 0.0

    def update(self, works: list[BatchEntry], verdicts: Listed[Verdict | None], costs: StepCosts) -> None:
        """Learn from a batch that has run: what its checkpoints saved, less what they took and the tokens lost."""
        nodes = sum(len(work.tree) for work in works if work.floor > 0.0)
        if nodes == 0:
            return
        self.looked_at += nodes
        self.dropped += sum(len(work.pruned) for work in works)
        lost = 0.0
        for work, verdict in zip(works, verdicts, strict=True):
            if verdict is not None and verdict.cut is not None:
                self.cut += 1
                lost += _expected(work.tree, verdict.cut)
        took_s = self._exits().took_s
        gained_s = self._saved_s(costs) - lost / self._pace(works, costs) - took_s
        gain = self._gains.setdefault(nodes.bit_length(), _Gain())
        weight = max(1.0 - DECAY, 1.0 / (gain.seen + 1))
        gain.seconds += weight * (gained_s - gain.seconds)
        gain.took_s += weight * (took_s - gain.took_s)
        gain.seen, gain.passed = gain.seen + 1, 0

    def whole_s(self, works: list[BatchEntry], costs: StepCosts, took_s: float, reading_s: float = 0.0) -> float:
        """Return the seconds that a step of `took_s` had taken with all rows, for the step costs.

        `reading_s`: what of it contexts were expected to take, for the error.
        """
        if not any(work.floor > 0.0 for work in works):
            return took_s
        whole_s = costs.seconds(_rows(works), sum(work.silent for work in works))
        saved_s, spent_s = self._saved_s(costs), self._exits().took_s
        if took_s > 0.0:
            self.error.update(whole_s + reading_s - saved_s + spent_s, took_s)
        return max(0.0, took_s - spent_s) * whole_s / (whole_s - saved_s)

    def _may_pay(self, works: list[BatchEntry], costs: StepCosts) -> bool:
        gain = self._gains.get(sum(len(work.tree) for work in works).bit_length())
        if gain is None:
            return True
        rows, wrong = _rows(works), math.ceil(sum(len(work.tree) - sum(work.tree.survival) for work in works))
        if self._rest * (costs.seconds(rows) - costs.seconds(rows - wrong)) <= gain.took_s:
            return False  # not even where all of them, and no other, left at the first checkpoint
        if gain.seen < TRIES or gain.seconds > 0.0:
            return True
        gain.passed += 1
        return gain.passed >= EVERY

    def _saved_s(self, costs: StepCosts) -> float:
        """Return the seconds that the last pass's rows saved by leaving."""
        return sum(rest * (costs.seconds(before) - costs.seconds(after)) for rest, before, after in self._exits().left)

    def _pace(self, works: list[BatchEntry], costs: StepCosts) -> float:
        """Return the tokens a second that the step is expected to give."""
        tokens = sum(work.final + sum(work.tree.survival) for work in works)
        return max(tokens, 1.0) / costs.seconds(_rows(works))


def _rows(works: list[BatchEntry]) -> int:
    return sum(len(work.tokens) + len(work.tree) for work in works)


def _row_s(works: list[BatchEntry], costs: StepCosts) -> float:
    """Return the mean seconds that one of the batch's draft tokens costs in a whole pass."""
    rows, nodes = _rows(works), sum(len(work.tree) for work in works)
    return (costs.seconds(rows) - costs.seconds(max(1, rows - nodes))) / nodes


def _expected(tree: Tree, right: int) -> float:
    """Return the tokens expected of a node that is right and of those below it."""
    whole, below, tokens = tree.survival[right - 1], {right}, 1.0
    for node, (parent, survival) in enumerate(zip(tree.parents, tree.survival, strict=True), start=1):
        if parent in below:  # parents stand before their children
            below.add(node)
            tokens += survival / whole if whole > 0.0 else 0.0
    return tokens

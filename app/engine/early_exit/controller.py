"""Decide when early exit pays, and the survival below which a row leaves (design D5).

Batch entries and step costs go in, each entry's `floor` comes out. The rule is the one that chose
the rows, with what is known better by then: behind the checkpoint a row still costs `rest` of its
price, and a token is worth the step's seconds a token. `auto` lets a step have a checkpoint where
those of about as many draft tokens gained more than they took. Knows no tensors.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from app.estimates.mean_error import MeanError
from app.estimates.step_costs import StepCosts
from app.state import BatchEntry

Mode = Literal["auto", "on", "off"]
DECAY = 0.95  # of the mean gain of checkpoints, at a new one
TRIES = 8  # checkpoints before they are judged,
EVERY = 64  # then one in so many steps where they do not pay: only trying shows that they pay again


@dataclass(slots=True)
class _Gain:
    """The gain of checkpoints in steps of about as many draft tokens."""

    seconds: float = 0.0  # decaying mean of what one saved, less what it took and the tokens it cost
    seen: int = 0
    passed: int = 0  # steps without one since


class EarlyExitController:
    """The floors of a batch's entries, and whether they pay.

    For the thread that runs the target.
    """

    def __init__(self, mode: Mode = "off", rest: float = 0.0, spent_s: Callable[[], float] = lambda: 0.0) -> None:
        """Start with no checkpoint seen.

        `rest`: the share of a row's cost that comes after the last checkpoint; 0: the target has
        none. `spent_s` returns the seconds that the checkpoints of the last pass took.
        """
        self.dropped = self.looked_at = 0  # nodes
        self.error: Final = MeanError()  # of what passes with checkpoints were expected to take
        self._mode = mode if rest > 0.0 else "off"
        self._rest = rest
        self._spent_s = spent_s
        self._gains: dict[int, _Gain] = {}  # by bit length of the draft tokens

    def allow(self, works: list[BatchEntry], costs: StepCosts, *, is_wanted: bool = True) -> None:
        """Set the entries' floor if dropping rows of this batch may pay.

        `is_wanted`: the scheduler's policy wants it; `on` disregards that.
        """
        nodes = sum(len(work.tree) for work in works)
        if self._mode == "off" or nodes == 0 or (self._mode == "auto" and not (is_wanted and self._may_pay(nodes))):
            return
        floor = self._pace(works, costs) * self._row_s(works, costs)
        for work in works:
            work.floor = floor if work.final else 0.0

    def update(self, works: list[BatchEntry], costs: StepCosts) -> None:
        """Learn from a batch that has run: the gain of its checkpoints by step costs and predictor."""
        nodes = sum(len(work.tree) for work in works if work.floor > 0.0)
        if nodes == 0:
            return
        self.looked_at += nodes
        self.dropped += sum(len(work.pruned) for work in works)
        lost = sum(sum(work.pruned.values()) for work in works)
        gained_s = self._saved_s(works, costs) - lost / self._pace(works, costs) - self._spent_s()
        gain = self._gains.setdefault(nodes.bit_length(), _Gain())
        weight = max(1.0 - DECAY, 1.0 / (gain.seen + 1))
        gain.seconds += weight * (gained_s - gain.seconds)
        gain.seen, gain.passed = gain.seen + 1, 0

    def whole_s(self, works: list[BatchEntry], costs: StepCosts, took_s: float, reading_s: float = 0.0) -> float:
        """Return the seconds that a step of `took_s` had taken with all rows, for the step costs.

        `reading_s`: what of it contexts were expected to take, for the error.
        """
        if not any(work.floor > 0.0 for work in works):
            return took_s
        whole_s, saved_s, spent_s = costs.seconds(_rows(works)), self._saved_s(works, costs), self._spent_s()
        if took_s > 0.0:
            self.error.update(whole_s + reading_s - saved_s + spent_s, took_s)
        return max(0.0, took_s - spent_s) * whole_s / (whole_s - saved_s)

    def _may_pay(self, nodes: int) -> bool:
        gain = self._gains.get(nodes.bit_length())
        if gain is None or gain.seen < TRIES or gain.seconds > 0.0:
            return True
        gain.passed += 1
        return gain.passed >= EVERY

    def _saved_s(self, works: list[BatchEntry], costs: StepCosts) -> float:
        rows = _rows(works)
        left = rows - sum(len(work.pruned) for work in works)
        return self._rest * (costs.seconds(rows) - costs.seconds(left))

    def _row_s(self, works: list[BatchEntry], costs: StepCosts) -> float:
        """Return the mean seconds that one of the batch's draft tokens costs behind the checkpoint."""
        rows, nodes = _rows(works), sum(len(work.tree) for work in works)
        return self._rest * (costs.seconds(rows) - costs.seconds(max(1, rows - nodes))) / nodes

    def _pace(self, works: list[BatchEntry], costs: StepCosts) -> float:
        """Return the tokens a second that the step is expected to give."""
        tokens = sum(work.final + sum(work.tree.survival) for work in works)
        return max(tokens, 1.0) / costs.seconds(_rows(works))


def _rows(works: list[BatchEntry]) -> int:
    return sum(len(work.tokens) + len(work.tree) for work in works)

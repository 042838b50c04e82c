"""When dropping rows in the middle of a pass pays, and what survival keeps a row (design D5).

The rule that chose the rows, again, with what is known better by then: behind the checkpoint a row still costs `rest`
of its price, and a token is worth what the step as a whole takes for one. `auto` lets a step have a checkpoint where
those of about as many draft tokens gained more than they took.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from app.estimates.step_costs import StepCosts
from app.state import BatchEntry

Mode = Literal["auto", "on", "off"]
DECAY = 0.95  # of what checkpoints gained, at a new one
TRIES = 8  # checkpoints before they are judged,
EVERY = 64  # and then one in so many steps where they do not pay: only trying shows that they do again


@dataclass(slots=True)
class _Gain:
    """Of checkpoints in steps of about as many draft tokens."""

    seconds: float = 0.0  # decaying mean of what one saved, less what it took and the tokens it cost
    seen: int = 0
    passed: int = 0  # steps without one since


class EarlyExitController:
    """Sets the floors of a batch's works, and learns whether that pays."""

    def __init__(self, mode: Mode = "off", rest: float = 0.0, spent_s: Callable[[], float] = lambda: 0.0) -> None:
        """rest: the share of a row's cost that comes after the last checkpoint; 0: the target has none.
        spent_s: what the checkpoints of the last pass took."""
        self.dropped = self.looked_at = 0  # nodes
        self._mode = mode if rest > 0.0 else "off"
        self._rest = rest
        self._spent_s = spent_s
        self._gains: dict[int, _Gain] = {}  # by bit length of the draft tokens

    def allow(self, works: list[BatchEntry], costs: StepCosts, *, is_wanted: bool = True) -> None:
        """Give the works their floor, if dropping rows of this batch may pay. `is_wanted`: by the scheduler's policy,
        which `on` does not heed."""
        nodes = sum(len(work.tree) for work in works)
        if self._mode == "off" or nodes == 0 or (self._mode == "auto" and not (is_wanted and self._may_pay(nodes))):
            return
        floor = self._pace(works, costs) * self._row_s(works, costs)
        for work in works:
            work.floor = floor if work.final else 0.0

    def update(self, works: list[BatchEntry], costs: StepCosts) -> None:
        """The batch has been run: what its checkpoints brought, as the cost table and the predictor have it."""
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

    def whole_s(self, works: list[BatchEntry], costs: StepCosts, took_s: float) -> float:
        """What a step that took `took_s` would have taken with all its rows: what a cost table can be told."""
        if not any(work.floor > 0.0 for work in works):
            return took_s
        whole_s = costs.seconds(_rows(works))
        return max(0.0, took_s - self._spent_s()) * whole_s / (whole_s - self._saved_s(works, costs))

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
        """What one of the batch's draft tokens costs behind the checkpoint, on average."""
        rows, nodes = _rows(works), sum(len(work.tree) for work in works)
        return self._rest * (costs.seconds(rows) - costs.seconds(max(1, rows - nodes))) / nodes

    def _pace(self, works: list[BatchEntry], costs: StepCosts) -> float:
        """Tokens a second that the step is expected to give."""
        tokens = sum(work.final + sum(work.tree.survival) for work in works)
        return max(tokens, 1.0) / costs.seconds(_rows(works))


def _rows(works: list[BatchEntry]) -> int:
    return sum(len(work.tokens) + len(work.tree) for work in works)

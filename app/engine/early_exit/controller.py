"""Decide which steps may drop draft rows in the middle of a pass (design D5).

FASER's gate (papers 2.2): a step has checkpoints if the rows expected to be rejected, times the layers behind the first
checkpoint, take longer than checkpoints took in steps of about as many draft tokens. The expected share of rejected
tokens comes from earlier steps.
"""

from collections.abc import Callable
from collections.abc import Sequence as Listed
from typing import Final, Literal, NamedTuple

from app.engine.step_costs import StepCosts
from app.mean_error import MeanError
from app.state import BatchEntry, Verdict

Mode = Literal["auto", "on", "off"]
DECAY = 0.95  # of what is known of earlier steps, at a new one


class ExitReport(NamedTuple):
    took_s: float = 0.0
    left: tuple[tuple[float, int, int], ...] = ()  # each time rows left: (`rest` there, rows before, rows after)


class EarlyExitController:
    def __init__(
        self, mode: Mode = "off", rest: float = 0.0, exits: Callable[[], ExitReport] = lambda: ExitReport()
    ) -> None:
        """`rest`: the share of a row's cost after the first checkpoint; 0: no checkpoints. `exits` reports on the last
        pass.
        """
        self.dropped = self.looked_at = 0  # nodes
        self.cut = 0  # of those dropped, the right ones that a verdict ended above
        self.error: Final = MeanError()  # of what passes with checkpoints were expected to take
        self._mode = mode if rest > 0.0 else "off"
        self._rest = rest
        self._exits = exits
        self._took_s: dict[int, float] = {}  # decaying means, by bit length of the draft tokens
        self._verified = self._rejected = 0.0  # decaying sums of draft tokens

    def allow(self, works: list[BatchEntry], costs: StepCosts, *, is_wanted: bool = True) -> None:
        """`is_wanted`: by the policy; mode `on` ignores it and the gate."""
        if self._mode == "off" or not any(work.tree.tokens for work in works):
            return
        if self._mode == "auto" and not (is_wanted and self._may_pay(works, costs)):
            return
        for work in works:
            work.may_exit = work.final and len(work.tree) > 0 and work.scores is None

    def update(self, works: list[BatchEntry], verdicts: Listed[Verdict | None]) -> None:
        if self._mode == "off":
            return
        verified = sum(len(work.tree) for work in works)
        accepted = sum(len(verdict.path) for verdict in verdicts if verdict is not None)
        self._verified = DECAY * self._verified + verified
        self._rejected = DECAY * self._rejected + verified - accepted
        nodes = sum(len(work.tree) for work in works if work.may_exit)
        if nodes == 0:
            return
        self.looked_at += nodes
        self.dropped += sum(len(work.pruned) for work in works)
        self.cut += sum(verdict is not None and verdict.cut is not None for verdict in verdicts)
        took_s, size = self._exits().took_s, nodes.bit_length()
        self._took_s[size] = DECAY * self._took_s.get(size, took_s) + (1.0 - DECAY) * took_s

    def whole_s(self, works: list[BatchEntry], costs: StepCosts, took_s: float, reading_s: float = 0.0) -> float:
        """Return the seconds of a step of `took_s` had it kept all rows. `reading_s`: the part for contexts."""
        if self._mode == "off" or not any(work.may_exit for work in works):
            return took_s
        report = self._exits()
        saved_s = sum(rest * (costs.seconds(before) - costs.seconds(after)) for rest, before, after in report.left)
        whole_s = costs.seconds(_rows(works), sum(work.silent for work in works))
        if took_s > 0.0:
            self.error.update(whole_s + reading_s - saved_s + report.took_s, took_s)
        return max(0.0, took_s - report.took_s) * whole_s / (whole_s - saved_s)

    def _may_pay(self, works: list[BatchEntry], costs: StepCosts) -> bool:
        if self._verified == 0.0:
            return False
        nodes, rows = sum(len(work.tree) for work in works), _rows(works)
        rejects = round(nodes * self._rejected / self._verified)
        saved_s = self._rest * (costs.seconds(rows) - costs.seconds(rows - rejects))
        return saved_s > self._took_s.get(nodes.bit_length(), 0.0)


def _rows(works: list[BatchEntry]) -> int:
    return sum(len(work.tokens) + len(work.tree) for work in works)

"""Follow the load with lengths, chunk and split together: FASER's controller (papers 2.4).

Decides by `app.speculation.joint`, and keeps a way to work until another one has been better for
some decisions, so that it does not flap. Is a `LengthPlanner`, and the overlap that belongs to it.
"""

import logging
from collections.abc import Callable
from typing import Final

from app.engine.step_costs import StepCosts
from app.placement.splits import Split
from app.speculation.baselines import CommittedCounts, record_asked, whole_chain
from app.speculation.draft_modes import DraftModes
from app.speculation.joint import BatchLoad, JointPlan, Profile, joint_plans
from app.speculation.length_policy import DraftBatch, LengthDecision, LengthSearch
from app.state import Tree

log = logging.getLogger(__name__)
MARGIN = 1.05  # by which another way must be faster: costs and chances are estimates
AFTER = 8  # decisions in which it must be, one after the other
FIRST = 8  # decisions in which the first way is kept, to learn what drafting takes
DOUBT_AFTER = 512  # decisions without a change: then the second best way is tried
DOUBT_MARGIN = 1.2  # unless it is expected to be slower by this
TRIAL = 8  # decisions that a trial lasts


class JointController:
    """Decide lengths, chunk and split together, batch after batch."""

    drafters: Final = None

    def __init__(self, search: LengthSearch, splits: tuple[Split, ...]) -> None:
        """Find lengths by `search`, and work in one of the ways that these splits allow."""
        self.modes: Final = DraftModes()
        self._search = search
        self._splits = splits
        self._committed = CommittedCounts()
        self._plan = JointPlan([], 0)
        self._decisions = 0  # since the way to work changed last
        self._least = FIRST  # of them before it may change again
        self._is_trial = False
        self._better = 0  # decisions on end in which another way was clearly better

    @property
    def plan_in_use(self) -> JointPlan:
        """Return the plan that was chosen last."""
        return self._plan

    def plan(self, batch: DraftBatch) -> LengthDecision:
        """Decide for one batch, and with it for all sequences how both sides work."""
        load = BatchLoad(dict(zip(batch.lengths, batch.candidates, strict=True)), batch.load)
        self._search.update(self._committed.since(batch.lengths))
        plans = joint_plans(Profile(self._splits, batch.costs, self.modes.with_models.costs), load, self._search)
        chosen = self._choose(plans)
        if chosen.way != self._plan.way:
            log.debug("split %d, in halves: %s, chunk %s", chosen.split, chosen.in_halves, chosen.chunk)
        self._plan = chosen
        self._search.record(dict(zip(batch.lengths, chosen.lengths, strict=True)))
        record_asked(batch.candidates, chosen.lengths)
        return LengthDecision(chosen.lengths, split=chosen.split)

    def trim(self, tree: Tree) -> Tree:
        """Reduce the tree to its main branch, all of which is verified."""
        return whole_chain(tree)

    def runs_ahead(self, asked: object, core_share: float) -> bool:
        """Tell whether drafters run ahead of the verdict."""
        return self._plan.chunk is not None

    def goes_together(self, costs: StepCosts, sequences: int, draft_s: Callable[[int], float]) -> bool:
        """Tell whether all sequences go in one batch."""
        return not self._plan.in_halves

    def chunk(self, asked: object, core_share: float) -> int | None:
        """Return the chunk of the plan; its lengths are cut to it already."""
        return self._plan.chunk

    def _choose(self, plans: list[JointPlan]) -> JointPlan:
        """Return the best of these plans, fastest first, or that of the present way where none is clearly better."""
        present = next((plan for plan in plans if plan.way == self._plan.way), None)
        self._decisions += 1
        if present is None:  # too few sequences for halves
            return self._switched(plans[0])
        if self._decisions <= self._least:
            return present
        if self._is_trial:
            return self._switched(plans[0])
        self._better = self._better + 1 if plans[0].pace > MARGIN * present.pace else 0
        if self._better >= AFTER:
            return self._switched(plans[0])
        if self._decisions > DOUBT_AFTER:
            self._decisions = 0
            second = next((plan for plan in plans if plan.way != present.way), present)
            if second is not present and DOUBT_MARGIN * second.pace > present.pace:
                return self._switched(second, least=TRIAL - 1, is_trial=True)
        return present

    def _switched(self, plan: JointPlan, least: int = 0, *, is_trial: bool = False) -> JointPlan:
        self._decisions = self._better = 0
        self._least, self._is_trial = least, is_trial
        return plan

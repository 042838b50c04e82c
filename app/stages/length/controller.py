"""What the sequences of a batch ask for next: of models and tables, of tables alone, or nothing. State around `ask`.

Tables cost next to nothing and models do not, so the two ways are priced and judged apart: each has its own costs and
its own expectations, and every round with models says, too, what the tables' part of its tree would have been alone.
"""

import logging
from collections.abc import Sequence as Listed
from dataclasses import dataclass, field

from app.estimates.acceptance import AcceptanceEstimate, AcceptanceEstimates
from app.estimates.draft_costs import DraftCosts
from app.estimates.step_costs import StepCosts
from app.messages import Record
from app.stages.length.marginal import Candidate, draft_lengths, probe, worth_s
from app.state import Tree

log = logging.getLogger(__name__)
ASK_AFTER_STEPS = 128  # without models, or without any draft: then one is asked for, whatever it is believed to cost
QUIET_AFTER_STEPS = 8  # without any draft, among as many sequences: from then on what pays is asked
QUIET_STEPS = 4  # only every so many steps; expectations change slowly when nobody drafts, and asking takes time
FIRST_FULL_ASKS = 8  # with models, before tables alone are chosen
FULL_AFTER_ASKS = 32  # of tables alone: then models are asked once


@dataclass(slots=True)
class DraftMode:
    """One way of drafting: what it takes, and what comes of it."""

    costs: DraftCosts = field(default_factory=DraftCosts)
    expectations: AcceptanceEstimates = field(default_factory=AcceptanceEstimates)

    def of(self, record: Record) -> AcceptanceEstimate:
        return self.expectations.of(record.id, record.tenant)


@dataclass(frozen=True, slots=True)
class LengthDecision:
    """Draft tokens for each candidate, who has one drafted without waiting for it, and whether no model is asked.

    `worth_s`: how long the drafts may take before going on without them is faster.
    """

    depths: list[int]
    probes: list[bool]
    is_model_free: bool
    worth_s: float


class LengthController:
    """Decides for batch after batch, and remembers what it needs for the next."""

    def __init__(self) -> None:
        self.with_models, self.model_free = DraftMode(), DraftMode()
        self._silent_steps = 0
        self._steps_without_models = 0
        self._silent_crowd = 0  # sequences when it was last looked at what pays
        self._model_free_rounds = (
            -FIRST_FULL_ASKS
        )  # since models were asked; below 0 they are asked whatever is believed

    def remove(self, request_id: str) -> None:
        """The request is over; what was learnt for its tenant stays."""
        self.with_models.expectations.remove(request_id)
        self.model_free.expectations.remove(request_id)

    def update(self, record: Record, tree: Tree, committed: Listed[int], tables: Listed[str], *, is_lean: bool) -> None:
        """What `committed`, the tokens after the tree's root, says about its drafts. `is_lean`: no model was asked."""
        if not is_lean:
            self.with_models.of(record).update_from_tree(tree, committed)
        self.model_free.of(record).update_from_part(tree, committed, tables)

    def update_costs(
        self, batch: int, depth: int, seconds: float, unread: int, *, is_lean: bool, spared: Listed[str] = ()
    ) -> None:
        """Drafts came so long after deciding on them had begun; see `DraftCosts.observe`. `spared`: models not
        run though they were asked, which says nothing of what they take."""
        if is_lean:
            self.model_free.costs.update(batch, depth, seconds)
        elif not spared:
            self.with_models.costs.update(batch, depth, seconds, unread)

    def is_quiet(self, records: Listed[Record]) -> bool:
        """Can these go on without drafts, without looking whether they would pay? Then a silent step is noted."""
        silent = self._silent_steps
        if silent < QUIET_AFTER_STEPS or silent % QUIET_STEPS == 0 or self._silent_crowd != len(records):
            return False
        self._silent_steps += 1
        self._steps_without_models += 1
        for record in records:
            self.with_models.of(record).record_asked(0)
            self.model_free.of(record).record_asked(0)
        return True

    def decide(
        self,
        full: list[Candidate],
        lean: list[Candidate] | None,
        costs: StepCosts,
        busy_s: float,
        share: float,
        budget: int | None = None,
        least: int = 0,
    ) -> LengthDecision:
        """For candidates of both ways, sequence by sequence; `lean` is None where there are no models or no tables.
        `busy_s`, `share`, `budget`: see `app.stages.length.marginal.ask`. Everybody who may asks for `least`, if the
        budget holds that, whatever it is believed to gain."""
        self._silent_steps, self._silent_crowd = self._silent_steps + 1, len(full)
        self._steps_without_models += 1
        must_ask = self._steps_without_models > ASK_AFTER_STEPS  # or a price that was wrong once would stay for ever

        def asked(of: list[Candidate], way: DraftMode, must_ask: bool, beat: float = 1.0) -> tuple[list[int], float]:
            return draft_lengths(
                of, costs, way.costs, busy_s=busy_s, share=share, must_ask=must_ask, budget=budget, beat=beat
            )

        few, lean_gain = (
            asked(lean, self.model_free, self._silent_steps > ASK_AFTER_STEPS) if lean is not None else ([], 1.0)
        )
        depths, gain = asked(full, self.with_models, must_ask, 1.0 if must_ask or self._is_full_due else lean_gain)
        chosen, is_lean = full, False
        if lean is not None and (lean_gain >= gain and not must_ask) and not (any(depths) and self._is_full_due):
            depths, chosen, is_lean = few, lean, True
        if budget is None or least * len(full) <= budget:
            depths = [max(depth, min(least, c.limit)) for depth, c in zip(depths, chosen, strict=True)]
        is_lean = is_lean or (lean is not None and not any(depths))  # probes go with the rest, or to tables
        probing, way = (lean, self.model_free) if lean is not None and is_lean else (full, self.with_models)
        probes = probe(probing, depths, costs, way.costs, share)
        self._note(depths, is_lean)
        log.debug("asking for %s, lean: %s", depths, is_lean)
        for candidates in (full, lean or []):
            for candidate, depth, is_probe in zip(candidates, depths, probes, strict=bool(candidates)):
                candidate.expectation.record_asked(depth or int(is_probe), is_probe)
        return LengthDecision(depths, probes, is_lean, worth_s(chosen, depths, costs))

    @property
    def _is_full_due(self) -> bool:
        """Models are asked where they gain more; now and then they are all the same, if that pays at all, since only
        asking shows what they would be worth."""
        return not 0 <= self._model_free_rounds < FULL_AFTER_ASKS

    def _note(self, depths: list[int], is_lean: bool) -> None:
        if any(depths):
            self._silent_steps = 0
            self._steps_without_models = self._steps_without_models if is_lean else 0
            self._model_free_rounds = self._model_free_rounds + 1 if is_lean or self._model_free_rounds < 0 else 0

"""What the sequences of a batch ask for next: of models and tables, of tables alone, or nothing. State around `ask`.

Tables cost next to nothing and models do not, so the two ways are priced and judged apart: each has its own costs and
its own expectations, and every round with models says, too, what the tables' part of its tree would have been alone.
"""

import logging
from collections.abc import Sequence as Listed
from dataclasses import dataclass, field

from app.estimates.acceptance import Expectation, Expectations
from app.estimates.draft_costs import DraftCosts
from app.estimates.step_costs import CostTable
from app.messages import Record
from app.stages.length.marginal import Candidate, ask, probe, worth_s
from app.state import Tree

log = logging.getLogger(__name__)
ASK_AFTER_STEPS = 128  # without models, or without any draft: then one is asked for, whatever it is believed to cost
QUIET_AFTER_STEPS = 8  # without any draft, among as many sequences: from then on what pays is asked
QUIET_STEPS = 4  # only every so many steps; expectations change slowly when nobody drafts, and asking takes time
FIRST_FULL_ASKS = 8  # with models, before tables alone are chosen
FULL_AFTER_ASKS = 32  # of tables alone: then models are asked once


@dataclass(slots=True)
class Way:
    """One way of drafting: what it takes, and what comes of it."""

    costs: DraftCosts = field(default_factory=DraftCosts)
    expectations: Expectations = field(default_factory=Expectations)

    def of(self, record: Record) -> Expectation:
        return self.expectations.of(record.id, record.tenant)


@dataclass(frozen=True, slots=True)
class Decision:
    """Draft tokens for each candidate, who has one drafted without waiting for it, and whether no model is asked.

    `worth_s`: how long the drafts may take before going on without them is faster.
    """

    depths: list[int]
    probes: list[bool]
    is_lean: bool
    worth_s: float


class Asking:
    """Decides for batch after batch, and remembers what it needs for the next."""

    def __init__(self) -> None:
        self.full, self.lean = Way(), Way()
        self._silent_steps = 0
        self._steps_without_models = 0
        self._silent_crowd = 0  # sequences when it was last looked at what pays
        self._lean_asks = -FIRST_FULL_ASKS  # since models were asked; below 0 they are asked whatever is believed

    def forget(self, request_id: str) -> None:
        """The request is over; what was learnt for its tenant stays."""
        self.full.expectations.forget(request_id)
        self.lean.expectations.forget(request_id)

    def learn(self, record: Record, tree: Tree, committed: Listed[int], tables: Listed[str], *, is_lean: bool) -> None:
        """What `committed`, the tokens after the tree's root, says about its drafts. `is_lean`: no model was asked."""
        if not is_lean:
            self.full.of(record).learn(tree, committed)
        self.lean.of(record).learn_part(tree, committed, tables)

    def took(
        self, batch: int, depth: int, seconds: float, unread: int, *, is_lean: bool, spared: Listed[str] = ()
    ) -> None:
        """Drafts came so long after deciding on them had begun; see `DraftCosts.observe`. `spared`: models not
        run though they were asked, which says nothing of what they take."""
        if is_lean:
            self.lean.costs.observe(batch, depth, seconds)
        elif not spared:
            self.full.costs.observe(batch, depth, seconds, unread)

    def is_quiet(self, records: Listed[Record]) -> bool:
        """Can these go on without drafts, without looking whether they would pay? Then a silent step is noted."""
        silent = self._silent_steps
        if silent < QUIET_AFTER_STEPS or silent % QUIET_STEPS == 0 or self._silent_crowd != len(records):
            return False
        self._silent_steps += 1
        self._steps_without_models += 1
        for record in records:
            self.full.of(record).asked(0)
            self.lean.of(record).asked(0)
        return True

    def decide(
        self,
        full: list[Candidate],
        lean: list[Candidate] | None,
        costs: CostTable,
        busy_s: float,
        share: float,
        budget: int | None = None,
        least: int = 0,
    ) -> Decision:
        """For candidates of both ways, sequence by sequence; `lean` is None where there are no models or no tables.
        `busy_s`, `share`, `budget`: see `app.stages.length.marginal.ask`. Everybody who may asks for `least`, if the
        budget holds that, whatever it is believed to gain."""
        self._silent_steps, self._silent_crowd = self._silent_steps + 1, len(full)
        self._steps_without_models += 1
        must_ask = self._steps_without_models > ASK_AFTER_STEPS  # or a price that was wrong once would stay for ever

        def asked(of: list[Candidate], way: Way, must_ask: bool, beat: float = 1.0) -> tuple[list[int], float]:
            return ask(of, costs, way.costs, busy_s=busy_s, share=share, must_ask=must_ask, budget=budget, beat=beat)

        few, lean_gain = asked(lean, self.lean, self._silent_steps > ASK_AFTER_STEPS) if lean is not None else ([], 1.0)
        depths, gain = asked(full, self.full, must_ask, 1.0 if must_ask or self._is_full_due else lean_gain)
        chosen, is_lean = full, False
        if lean is not None and (lean_gain >= gain and not must_ask) and not (any(depths) and self._is_full_due):
            depths, chosen, is_lean = few, lean, True
        if budget is None or least * len(full) <= budget:
            depths = [max(depth, min(least, c.limit)) for depth, c in zip(depths, chosen, strict=True)]
        is_lean = is_lean or (lean is not None and not any(depths))  # probes go with the rest, or to tables
        probing, way = (lean, self.lean) if lean is not None and is_lean else (full, self.full)
        probes = probe(probing, depths, costs, way.costs, share)
        self._note(depths, is_lean)
        log.debug("asking for %s, lean: %s", depths, is_lean)
        for candidates in (full, lean or []):
            for candidate, depth, is_probe in zip(candidates, depths, probes, strict=bool(candidates)):
                candidate.expectation.asked(depth or int(is_probe), is_probe)
        return Decision(depths, probes, is_lean, worth_s(chosen, depths, costs))

    @property
    def _is_full_due(self) -> bool:
        """Models are asked where they gain more; now and then they are all the same, if that pays at all, since only
        asking shows what they would be worth."""
        return not 0 <= self._lean_asks < FULL_AFTER_ASKS

    def _note(self, depths: list[int], is_lean: bool) -> None:
        if any(depths):
            self._silent_steps = 0
            self._steps_without_models = self._steps_without_models if is_lean else 0
            self._lean_asks = self._lean_asks + 1 if is_lean or self._lean_asks < 0 else 0

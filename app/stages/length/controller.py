"""Decide the next drafts of a batch: with models, of model-free drafters alone, or none.

Holds the state around `draft_lengths`: the modes chosen recently, and when the other one is due.
"""

import logging
from collections.abc import Sequence as Listed
from dataclasses import replace
from typing import Final

from app.estimates.draft_costs import DraftCosts
from app.estimates.step_costs import StepCosts
from app.messages import LEAST_SURVIVAL, Record
from app.stages.length.draft_modes import DraftMode, DraftModes
from app.stages.length.marginal import Candidate, draft_lengths, least_survival, probe, warm_up, worth_s
from app.stages.length.planner import DraftBatch, LengthDecision
from app.state import Tree

log = logging.getLogger(__name__)
ASK_AFTER_STEPS = 128  # without models: then they are tried, whatever they seem to cost
LATEST_ASK_STEPS = 1024  # without models, after which they are tried however much of the steps that takes
TRIAL_SHARE = 0.01  # of the steps since models drafted last, that a trial of them takes at most
FIRST_TRIAL_STEPS = 16  # without any draft: then drafting is tried, and after twice as many each time, up to a bound
EARLY_TRIAL_SHARE = 0.05  # of the steps since any draft, that such a trial takes at most
TRIAL_TOKENS = 4  # of each sequence, in a trial
QUIET_AFTER_STEPS = 8  # without any draft, at the same number of sequences: from then on lengths are decided
QUIET_STEPS = 4  # only at each fourth step: estimates hardly change without drafts, and deciding takes time
FIRST_FULL_ASKS = 8  # with models, before model-free drafters alone are chosen
FULL_AFTER_ASKS = 32  # of model-free drafters alone: then models are asked; twice as many if they gained nothing


def trial_lengths(candidates: list[Candidate], costs: StepCosts) -> list[int]:
    """Return the lengths of a trial: those that pay if drafting costs next to nothing, TRIAL_TOKENS at most.

    All sequences take part, since what drafts cost hangs on how many are drafted for at once.
    """
    depths, _ = draft_lengths(candidates, costs, DraftCosts())
    return [min(TRIAL_TOKENS, depth) for depth in depths]


def trial_steps(candidates: list[Candidate], costs: StepCosts, drafting: DraftCosts) -> float:
    """Return how many plain steps take as long as a trial, reading included."""
    trial_s = drafting.seconds(len(candidates), TRIAL_TOKENS) + sum(c.read_s for c in candidates)
    return trial_s / costs.seconds(len(candidates))


def most_steps(candidates: list[Candidate], costs: StepCosts, drafting: DraftCosts) -> int:
    """Return the steps from one trial of models to the next: it takes TRIAL_SHARE at most, within the bounds above."""
    steps = trial_steps(candidates, costs, drafting) / TRIAL_SHARE
    return int(min(max(ASK_AFTER_STEPS, steps), LATEST_ASK_STEPS))


class LengthController:
    """Decide by marginal gain, batch after batch; the default `LengthPlanner`."""

    drafters: Final = None  # routing weighs how many are asked

    def __init__(self) -> None:
        self.modes: Final = DraftModes()
        self._silent_steps = 0
        self._steps_without_models = 0
        self._trial_after = FIRST_TRIAL_STEPS  # steps without any draft
        self._trials = 0  # models and model-free drafters in turn
        self._silent_crowd = 0  # sequences at the last decision
        self._model_free_rounds = -FIRST_FULL_ASKS  # since models drafted; below 0 they draft in any case
        self._full_after = FULL_AFTER_ASKS  # model-free rounds
        warm_up()

    def is_quiet(self, records: Listed[Record]) -> bool:
        """Tell whether these go on without drafts and without a decision; if so, count a silent step."""
        silent = self._silent_steps
        if silent < QUIET_AFTER_STEPS or silent % QUIET_STEPS == 0 or self._silent_crowd != len(records):
            return False
        self._silent_steps += 1
        self._steps_without_models += 1
        for record in records:
            self.modes.with_models.of(record).record_asked(0)
            self.modes.model_free.of(record).record_asked(0)
        return True

    def plan(self, batch: DraftBatch) -> LengthDecision:
        """Decide for one batch; a lone sequence of model-free drafters asks for all it may.

        Their drafts cost next to nothing for one sequence, and their tree is cut by survival
        anyway.
        """
        full = batch.candidates
        found = self.decide(
            full,
            batch.model_free,
            batch.costs,
            batch.busy_s,
            batch.core_share,
            batch.least,
            batch.prompts_s,
            is_waiting=batch.has_models,
        )
        if len(full) == 1 and found.depths[0] and (found.is_model_free or not batch.has_models):
            lone = batch.model_free[0] if batch.model_free is not None and found.is_model_free else full[0]
            return replace(found, depths=[lone.limit])
        return found

    def trim(self, tree: Tree) -> Tree:
        """Return the tree whole: `tree_budget` cuts it by survival."""
        return tree

    def decide(
        self,
        full: list[Candidate],
        model_free: list[Candidate] | None,
        costs: StepCosts,
        busy_s: float,
        share: float,
        least: int = 0,
        prompts_s: float = 0.0,
        *,
        is_waiting: bool = True,
    ) -> LengthDecision:
        """Decide for the candidates of both modes, sequence by sequence.

        `model_free` is None where there are no models or no model-free drafters. `busy_s`, `share`:
        see `app.stages.length.marginal.draft_lengths`; `prompts_s`: see `DraftBatch`. `is_waiting`:
        whether the drafts of `full` are waited for, as those of models are; others the verifier makes itself.
        Every sequence that may asks for `least` tokens at least, whatever their expected gain.
        """
        self._silent_steps, self._silent_crowd = self._silent_steps + 1, len(full)
        self._steps_without_models += 1
        # Or a cost that was once measured wrong would stay so.
        few_tried = model_free if self._trials % 2 == 0 else None  # models and model-free drafters in turn
        models = self.modes.with_models
        tried_costs = (self.modes.model_free if few_tried else models).costs
        is_trial = self._silent_steps > self._trial_after and self._silent_steps > min(
            trial_steps(few_tried or full, costs, tried_costs) / EARLY_TRIAL_SHARE, LATEST_ASK_STEPS
        )
        tries_few = is_trial and few_tried is not None
        must_ask = (is_trial and not tries_few) or (
            self._steps_without_models > ASK_AFTER_STEPS
            and self._steps_without_models > most_steps(full, costs, models.costs)
        )
        beside_s = max(0.0, prompts_s - costs.seconds(1))  # reading the weights is a part of either step

        def asked(
            of: list[Candidate], mode: DraftMode, must_ask: bool, between_s: float, share: float, beat: float = 1.0
        ) -> tuple[list[int], float]:
            found = draft_lengths(
                of,
                costs,
                mode.costs,
                busy_s=busy_s,
                beside_s=beside_s,
                between_s=between_s,
                share=share,
                beat=beat,
            )
            return (trial_lengths(of, costs), found[1]) if must_ask and not any(found[0]) else found

        few: list[int] = []
        few_gain = 1.0
        if model_free is not None:
            few, few_gain = asked(  # in the verifier's own process: nothing hides them, and it waits for nothing
                model_free, self.modes.model_free, tries_few, 0.0, share=1.0
            )
        beat = 1.0 if must_ask or self._is_full_due else few_gain
        between_s = prompts_s if is_waiting else 0.0
        depths, gain = asked(full, models, must_ask, between_s, share, beat)
        chosen, is_model_free = full, False
        if model_free is not None and (few_gain >= gain and not must_ask) and not (any(depths) and self._is_full_due):
            depths, chosen, is_model_free = few, model_free, True
        depths = [max(depth, min(least, c.limit)) for depth, c in zip(depths, chosen, strict=True)]
        # Probes go with the rest, or to model-free drafters.
        is_model_free = is_model_free or (model_free is not None and not any(depths))
        probing, mode = full, models
        if model_free is not None and is_model_free:
            probing, mode = model_free, self.modes.model_free
        probes = probe(probing, depths, costs, mode.costs, share)
        if is_trial:
            self._trials += 1
            self._trial_after = min(most_steps(full, costs, models.costs), 2 * self._trial_after)
        elif any(depths):
            self._trial_after = FIRST_TRIAL_STEPS
        if any(depths) and not is_model_free and self._model_free_rounds >= 0:
            longer = 2 * self._full_after if few_gain >= gain else FULL_AFTER_ASKS
            self._full_after = min(most_steps(full, costs, models.costs), longer)
        self._record(depths, is_model_free)
        log.debug("draft tokens %s, model-free: %s", depths, is_model_free)
        for candidates in (full, model_free or []):
            for candidate, depth, is_probe in zip(candidates, depths, probes, strict=bool(candidates)):
                candidate.expectation.record_asked(depth or int(is_probe), is_probe)
        enough = LEAST_SURVIVAL
        if not is_model_free:
            enough = least_survival(
                full, depths, costs, models.costs, busy_s=busy_s, beside_s=beside_s, between_s=between_s, share=share
            )
        return LengthDecision(depths, probes, is_model_free, worth_s(chosen, depths, costs), least_survival=enough)

    @property
    def _is_full_due(self) -> bool:
        """Tell whether models draft if that pays at all, even where model-free drafters gain more.

        Otherwise they draft where they gain more; only drafting shows what they are worth.
        """
        return not 0 <= self._model_free_rounds < self._full_after

    def _record(self, depths: list[int], is_model_free: bool) -> None:
        if any(depths):
            self._silent_steps = 0
            self._steps_without_models = self._steps_without_models if is_model_free else 0
            is_counted = is_model_free or self._model_free_rounds < 0
            self._model_free_rounds = self._model_free_rounds + 1 if is_counted else 0

"""Decide the next drafts of a batch: with models, of model-free drafters alone, or none.

Holds the state around `draft_lengths`: the modes chosen recently, and when the other one is due.
"""

import logging
from collections.abc import Sequence as Listed
from dataclasses import dataclass, replace
from typing import Final

from app.engine.step_costs import StepCosts
from app.messages import LEAST_SURVIVAL, Record
from app.speculation.draft_costs import DraftCosts, size_class
from app.speculation.draft_modes import DraftModes
from app.speculation.length_policy import DraftBatch, LengthDecision
from app.speculation.marginal import (
    GO_ON_GAIN,
    MIN_GAIN,
    Candidate,
    DraftPrice,
    draft_lengths,
    least_survival,
    probe,
    warm_up,
    worth_s,
)
from app.state import Tree

log = logging.getLogger(__name__)
ASK_AFTER_STEPS = 128  # without models: then they are tried, whatever they seem to cost
LATEST_ASK_STEPS = 1024  # without models, after which they are tried however much of the steps that takes
TRIAL_SHARE = 0.01  # of the steps since models drafted last, that a trial of them takes at most
FIRST_TRIAL_STEPS = 16  # without drafts of a kind: then it is tried, and after twice as many each time, up to a bound
EARLY_TRIAL_SHARE = 0.05  # of those steps, that such a trial takes at most
LITTLE_GAIN = 1.35  # of plain decoding, by model-free drafts: models are tried early where these gain less
TRIAL_TOKENS = 4  # of each sequence, in a trial
TRIAL_ROUNDS = 2  # of a trial: in the first drafters catch up, the second shows what drafts take
QUIET_AFTER_STEPS = 8  # without any draft, at the same number of sequences: from then on lengths are decided
QUIET_STEPS = 4  # only at each fourth step: estimates hardly change without drafts, and deciding takes time
FIRST_FULL_ASKS = 8  # with models, before model-free drafters alone are chosen
FULL_AFTER_ASKS = 32  # of model-free drafters alone: then models are asked; twice as many if they gained nothing


def trial_lengths(candidates: list[Candidate], costs: StepCosts) -> list[int]:
    """Return the lengths of a trial: those that pay if drafting costs nothing, TRIAL_TOKENS at most.

    All sequences take part, since what drafts cost hangs on how many are drafted for at once.
    """
    depths, _ = draft_lengths(candidates, costs, DraftPrice(DraftCosts(0.0)))
    return [min(TRIAL_TOKENS, depth) for depth in depths]


def trial_steps(candidates: list[Candidate], costs: StepCosts, drafting: DraftCosts) -> float:
    """Return how many plain steps take as long as a trial, reading included."""
    trial_s = TRIAL_ROUNDS * drafting.seconds(len(candidates), TRIAL_TOKENS) + sum(c.read_s for c in candidates)
    return trial_s / costs.seconds(len(candidates))


def most_steps(candidates: list[Candidate], costs: StepCosts, drafting: DraftCosts) -> int:
    """Return the steps from one trial of models to the next: it takes TRIAL_SHARE at most, within the bounds above."""
    steps = trial_steps(candidates, costs, drafting) / TRIAL_SHARE
    return int(min(max(ASK_AFTER_STEPS, steps), LATEST_ASK_STEPS))


@dataclass(slots=True)
class _Silence:
    """Count the steps in which something did not draft, and tell when it is tried whatever it seems to cost.

    Or a cost that was once measured wrong would stay so. Each trial that changes nothing doubles the time to the next.
    """

    steps: int = 0
    trial_after: int = FIRST_TRIAL_STEPS
    rounds_left: int = 0  # of the trial under way

    def is_trial_due(
        self, candidates: list[Candidate], costs: StepCosts, drafting: DraftCosts, gain: float = 1.0
    ) -> bool:
        """Tell whether so many steps were silent that a trial is a small part of them.

        `gain`: of what drafts meanwhile. Where that is LITTLE_GAIN or more trials wait for `most_steps`.
        """
        if self.rounds_left:
            return True
        if self.steps <= self.trial_after:
            return False
        if gain >= LITTLE_GAIN:
            return self.steps > most_steps(candidates, costs, drafting)
        return self.steps > min(trial_steps(candidates, costs, drafting) / EARLY_TRIAL_SHARE, LATEST_ASK_STEPS)

    def record(self, most_steps: int, *, is_trial: bool, drafts: bool) -> None:
        """Record a decision; the next trial comes after at most `most_steps` silent ones."""
        begins = is_trial and not self.rounds_left
        self.rounds_left = (TRIAL_ROUNDS if begins else self.rounds_left) - 1 if is_trial and drafts else 0
        if begins:
            self.trial_after = min(most_steps, 2 * self.trial_after)
        elif drafts and not is_trial:
            self.trial_after = FIRST_TRIAL_STEPS
        if drafts:
            self.steps = 0


class LengthController:
    """Decide by marginal gain, batch after batch; the default `LengthPlanner`."""

    drafters: Final = None  # routing weighs how many are asked

    def __init__(self) -> None:
        self.modes: Final = DraftModes()
        self._any = _Silence()  # without any draft
        self._models: dict[int, _Silence] = {}  # without drafts of models for a whole batch, by its size class
        self._silent_crowd = 0  # sequences at the last decision
        self._model_free_rounds = -FIRST_FULL_ASKS  # since models drafted; below 0 they draft in any case
        self._full_after = FULL_AFTER_ASKS  # model-free rounds
        warm_up()

    def is_quiet(self, records: Listed[Record]) -> bool:
        """Tell whether these go on without drafts and without a decision; if so, count a silent step."""
        silent = self._any.steps
        if silent < QUIET_AFTER_STEPS or silent % QUIET_STEPS == 0 or self._silent_crowd != len(records):
            return False
        self._any.steps += 1
        self._without_models(len(records)).steps += 1
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
        found = self.decide(batch)
        if len(full) == 1 and found.depths[0] and (found.is_model_free or not batch.has_models):
            lone = batch.model_free[0] if batch.model_free is not None and found.is_model_free else full[0]
            return replace(found, depths=[lone.limit])
        return found

    def trim(self, tree: Tree) -> Tree:
        """Return the tree whole: `tree_budget` cuts it by survival."""
        return tree

    def decide(self, batch: DraftBatch) -> LengthDecision:
        """Decide for the candidates of both modes, sequence by sequence.

        Every sequence that may asks for `batch.least` tokens at least, whatever their expected gain.
        """
        full, model_free, costs = batch.candidates, batch.model_free, batch.costs
        self._silent_crowd = len(full)
        least_gain = MIN_GAIN if self._any.steps else GO_ON_GAIN
        self._any.steps += 1
        silence = self._without_models(len(full))
        silence.steps += 1
        models = self.modes.with_models
        alone = self.modes.model_free
        beside_s = max(0.0, batch.prompts_s - costs.seconds(1))  # reading the weights is a part of either step
        price = DraftPrice(
            models.costs,
            batch.busy_s,
            beside_s,
            batch.prompts_s if batch.has_models else 0.0,  # what the verifier drafts itself is not waited for
            batch.core_share,
        )
        few: list[int] = []
        few_gain = 1.0
        tries_few = False
        if model_free is not None:
            tries_few = self._any.is_trial_due(model_free, costs, alone.costs)
            # In the verifier's own process: nothing hides them, and it waits for nothing.
            own = DraftPrice(alone.costs, batch.busy_s, beside_s, share=1.0)
            few, few_gain = _asked(model_free, costs, own, batch.together, least_gain, tries_few)
        # The more is gained without models, the less often they are tried.
        must_ask = silence.is_trial_due(full, costs, models.costs, few_gain)
        beat = max(batch.together, 1.0 if must_ask or self._is_full_due else few_gain)
        depths, gain = _asked(full, costs, price, beat, least_gain, must_ask)
        if batch.ahead is not None and not any(depths):
            # What drafts took of late is not what they take once drafters run ahead.
            size, ahead_gain = batch.ahead()
            if ahead_gain > max(least_gain, beat):
                depths, gain = [min(size, c.limit) for c in full], ahead_gain
        was_tried, must_ask = must_ask, must_ask and any(depths)  # what would not pay at no price is no trial
        chosen, is_model_free = full, False
        if model_free is not None and (few_gain >= gain and not must_ask) and not (any(depths) and self._is_full_due):
            depths, chosen, is_model_free = few, model_free, True
        depths = [max(depth, min(batch.least, c.limit)) for depth, c in zip(depths, chosen, strict=True)]
        # Probes go with the rest, or to model-free drafters.
        is_model_free = is_model_free or (model_free is not None and not any(depths))
        probing, mode = (full, models) if model_free is None or not is_model_free else (model_free, alone)
        probes = probe(probing, depths, costs, mode.costs, batch.core_share)
        most = most_steps(full, costs, models.costs)
        self._any.record(most, is_trial=tries_few or was_tried, drafts=any(depths))
        is_whole = size_class(sum(map(bool, depths))) == size_class(len(full))
        silence.record(most, is_trial=was_tried, drafts=is_whole and not is_model_free)
        if any(depths):
            self._record(is_model_free, few_gain >= gain, most)
        log.debug("draft tokens %s, model-free: %s", depths, is_model_free)
        for candidates in (full, model_free or []):
            for candidate, depth, is_probe in zip(candidates, depths, probes, strict=bool(candidates)):
                candidate.expectation.record_asked(depth or int(is_probe), is_probe)
        enough = LEAST_SURVIVAL if is_model_free else least_survival(full, depths, costs, price)
        worth = worth_s(chosen, depths, costs)
        if must_ask:  # a trial shows what drafts take, unless drafters must read for longer than that first
            worth = max(worth, 2.0 * models.costs.seconds(len(full), max(depths)))
        return LengthDecision(depths, probes, is_model_free, worth, least_survival=enough)

    def _without_models(self, sequences: int) -> _Silence:
        """Return the silence of models for batches like one of so many: drafts for a part of it show nothing of it."""
        return self._models.setdefault(size_class(sequences), _Silence())

    @property
    def _is_full_due(self) -> bool:
        """Tell whether models draft if that pays at all, even where model-free drafters gain more.

        Otherwise they draft where they gain more; only drafting shows what they are worth.
        """
        return not 0 <= self._model_free_rounds < self._full_after

    def _record(self, is_model_free: bool, does_as_well: bool, most: int) -> None:
        """Record a round of drafts. `does_as_well`: model-free ones gain as much; `most`: see `most_steps`."""
        if not is_model_free and self._model_free_rounds >= 0:
            self._full_after = min(most, 2 * self._full_after if does_as_well else FULL_AFTER_ASKS)
        is_counted = is_model_free or self._model_free_rounds < 0
        self._model_free_rounds = self._model_free_rounds + 1 if is_counted else 0


def _asked(
    candidates: list[Candidate], costs: StepCosts, price: DraftPrice, beat: float, least_gain: float, is_trial: bool
) -> tuple[list[int], float]:
    """Return the lengths that pay and their gain; where none does those of a trial, if it is one."""
    depths, gain = draft_lengths(candidates, costs, price, beat, least_gain)
    is_part = size_class(sum(map(bool, depths))) < size_class(len(candidates))
    return (trial_lengths(candidates, costs) if is_trial and is_part else depths), gain

"""Decide the next drafts of a batch: with models, of model-free drafters alone, or none."""

import logging
from typing import Final

from app.engine.step_costs import StepCosts
from app.speculation.draft_costs import DraftCosts, TableCosts
from app.speculation.draft_modes import DraftModes
from app.speculation.exploration import TRIAL_ROUNDS
from app.speculation.length_protocol import DraftBatch, LengthDecision
from app.speculation.marginal import Candidate, DraftPrice, draft_lengths, warm_up, worth_s
from app.state import Tree

log = logging.getLogger(__name__)
TRIAL_TOKENS = 2  # of each sequence, in a trial


class LengthController:
    """Choose what `draft_lengths` expects to be fastest, but for trials of models; the default `LengthPlanner`."""

    drafters: Final = None  # routing decides how many drafters take part

    def __init__(self) -> None:
        self.modes: Final = DraftModes()
        warm_up()

    def plan(self, batch: DraftBatch) -> LengthDecision:
        """Decide for one batch. Each sequence that may asks for at least `batch.least` tokens."""
        costs, models = batch.costs, self.modes.with_models.costs
        # The verifier drafts without models in its own process: nothing hides that, and it waits for nothing.
        own = DraftPrice(self.modes.model_free.costs, batch.busy_s, batch.prompt_rows, share=1.0, tree_s=batch.tree_s)
        chosen, price = batch.candidates, own
        if batch.has_models:
            price = DraftPrice(models, batch.busy_s, batch.prompt_rows, batch.prompts_s, batch.core_share, batch.tree_s)
        depths, gain = draft_lengths(chosen, costs, price)
        is_model_free, is_trial = not batch.has_models, False
        if batch.has_models:
            few, few_gain = [0] * len(chosen), 1.0
            if batch.model_free is not None:
                few, few_gain = draft_lengths(batch.model_free, costs, own)
            trial = depths if any(depths) else trial_lengths(chosen, costs)
            loss_s = _loss_s(chosen, trial, costs, models, max(gain, few_gain))
            is_trial = any(trial) and self.modes.exploration.is_due(
                loss_s, pays=any(depths) or batch.model_free is None
            )
            if is_trial:
                depths = trial
            elif batch.model_free is not None and few_gain >= gain:
                depths, chosen, is_model_free = few, batch.model_free, True
        depths = [max(depth, min(batch.least, c.limit)) for depth, c in zip(depths, chosen, strict=True)]
        if is_model_free and len(chosen) == 1 and any(depths):
            depths = [chosen[0].limit]  # costs next to nothing, and the tree is cut by survival
        log.debug("draft tokens %s, model-free: %s", depths, is_model_free)
        has_models = any(depths) and not is_model_free
        self.modes.exploration.record(costs.seconds(len(chosen)), has_models=has_models, is_trial=is_trial)
        for candidates in (batch.candidates, batch.model_free or []):
            for candidate, depth in zip(candidates, depths, strict=bool(candidates)):
                candidate.expectation.record_asked(depth)
        worth = max(0.0, worth_s(chosen, depths, costs))
        if is_trial and has_models:  # it shows what drafts take, unless drafters must read for longer than that first
            worth = max(worth, 2.0 * models.seconds(len(chosen), max(depths)))
        return LengthDecision(depths, is_model_free, worth)

    def trim(self, tree: Tree) -> Tree:
        """Return the whole tree: `tree_budget` cuts it."""
        return tree


def trial_lengths(candidates: list[Candidate], costs: StepCosts) -> list[int]:
    """Return the lengths of a trial: those that pay if drafting costs nothing, TRIAL_TOKENS at most.

    All sequences take part, since the cost depends on their number.
    """
    depths, _ = draft_lengths(candidates, costs, DraftPrice(TableCosts()))
    return [min(TRIAL_TOKENS, depth) for depth in depths]


def _loss_s(
    candidates: list[Candidate], depths: list[int], costs: StepCosts, drafting: DraftCosts, gain: float
) -> float:
    """Return the seconds of a trial beyond those that its tokens take otherwise, at `gain` over plain decoding."""
    draft_s = drafting.seconds(sum(map(bool, depths)), max(depths, default=0))
    read_s = sum(c.read_s for c, depth in zip(candidates, depths, strict=True) if depth)
    return TRIAL_ROUNDS * (draft_s - worth_s(candidates, depths, costs, gain)) + read_s

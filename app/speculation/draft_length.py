"""Decide the next drafts of a batch: with models, of model-free drafters alone, or none."""

import logging
from dataclasses import replace
from typing import Final, NamedTuple

from app.engine.step_costs import StepCosts
from app.speculation.acceptance import AcceptanceEstimate
from app.speculation.draft_modes import DraftModes
from app.speculation.guard import MIN_GAIN, TRIAL_ROUNDS, Way
from app.speculation.length_protocol import DraftBatch, LengthDecision
from app.speculation.marginal import Candidate, DraftPrice, draft_lengths, tokens_of, warm_up, worth_s

log = logging.getLogger(__name__)
TRIAL_TOKENS = 2  # of each sequence, in a trial of models that do not pay


class _Choice(NamedTuple):
    """A way to work, and its pace over that of plain decoding."""

    candidates: list[Candidate]
    depths: list[int]
    price: DraftPrice
    gain: float = 1.0


class LengthController:
    """Choose what `draft_lengths` expects to be fastest, but for trials; the default `LengthPlanner`."""

    drafters: Final = None  # routing decides how many drafters take part
    is_tree: Final = True  # which `tree_budget` cuts

    def __init__(self) -> None:
        self.modes: Final = DraftModes()
        warm_up()

    def plan(self, batch: DraftBatch) -> LengthDecision:
        """Decide for one batch. Each sequence that may asks for at least `batch.least` tokens."""
        self.modes.guard.follow(batch.load)
        choices = self._choices(batch)
        way = best = max(choices, key=lambda way: choices[way].gain)
        if not batch.prompt_rows:  # what a trial loses, all that wait lose
            way = next(
                (one for one in choices if one is not best and self._is_due(choices, one, best, batch.costs)), way
            )
        is_trial = way is not best
        if way is Way.PLAIN and batch.least:
            way = Way.MODEL_FREE if Way.MODEL_FREE in choices else Way.MODELS
        candidates, depths, price, _ = choices[way]
        depths = [max(depth, min(batch.least, c.limit)) for depth, c in zip(depths, candidates, strict=True)]
        if way is Way.MODEL_FREE and len(candidates) == 1 and any(depths):
            depths = [candidates[0].limit]  # costs next to nothing, and the tree is cut by survival
        log.debug("draft tokens %s, %s", depths, way.value)
        worth = max(0.0, worth_s(candidates, depths, batch.costs, host_s=batch.host_s))
        if is_trial and way is Way.MODELS:  # it shows what drafts take, unless drafters must read for longer than that
            worth = max(worth, 2.0 * self.modes.with_models.costs.seconds(len(candidates), max(depths)))
        return LengthDecision(depths, way is Way.MODEL_FREE, worth, price=price, is_trial=is_trial)

    def _choices(self, batch: DraftBatch) -> dict[Way, _Choice]:
        """Return the best lengths of each way; of equal ones the first is taken."""
        size, slowdown = len(batch.candidates), self.modes.guard.slowdown
        free = batch.model_free if batch.has_models else batch.candidates
        # The verifier drafts without models in its own process: nothing hides that, and it waits for nothing.
        work = DraftPrice(
            self.modes.model_free.costs, batch.busy_s, batch.prompt_rows, tree_s=batch.tree_s, host_s=batch.host_s
        )
        own = replace(work, share=1.0)
        found = {}
        if free is not None:
            depths, gain = draft_lengths(free, batch.costs, own)
            found[Way.MODEL_FREE] = _Choice(free, depths, own, gain / slowdown(Way.MODEL_FREE))
        found[Way.PLAIN] = _Choice(batch.candidates, [0] * size, own, 1.0 / slowdown(Way.PLAIN))
        if batch.has_models:
            costs = self.modes.with_models.costs
            price = replace(work, draft_costs=costs, prompts_s=batch.prompts_s, share=batch.core_share)
            depths, gain = draft_lengths(batch.candidates, batch.costs, price)
            if not costs.is_known:
                depths = _first_of(depths)
            found[Way.MODELS] = _Choice(batch.candidates, depths, price, gain / slowdown(Way.MODELS))
        for way, choice in [*found.items()]:
            if way is not Way.PLAIN and not any(choice.depths):
                found[way] = choice._replace(gain=0.0)  # plain decoding is meant
        return found

    def _is_due(self, choices: dict[Way, _Choice], way: Way, best: Way, costs: StepCosts) -> bool:
        """Tell whether this way, not the best, is tried; plain decoding only where it is expected to be the best."""
        choice, slowdown = choices[way], self.modes.guard.slowdown(way)
        candidates = choice.candidates
        if way is Way.PLAIN:
            if choice.gain * slowdown <= choices[best].gain:
                return False
        else:
            if not any(choice.depths):
                draft_s = choice.price.draft_costs.seconds(len(candidates), TRIAL_TOKENS)
                depths = trial_lengths(candidates, costs, draft_s, unseen=best is Way.PLAIN)
                choice = choices[way] = choice._replace(depths=depths)
            if not any(choice.depths):
                return False
        reads_s = sum(c.read_s for c, depth in zip(candidates, choice.depths, strict=True) if depth)
        plain_s = choice.price.round_s(candidates, [0] * len(candidates), costs)
        best_s = plain_s * tokens_of(candidates, choice.depths) / len(candidates) / choices[best].gain
        round_s = slowdown * choice.price.round_s(candidates, choice.depths, costs)
        return self.modes.guard.is_due(way, TRIAL_ROUNDS * round_s + reads_s, TRIAL_ROUNDS * best_s)


def _first_of(depths: list[int]) -> list[int]:
    """Let only the first sequence ask: it shows what reading takes before all texts are read."""
    first = next((i for i, depth in enumerate(depths) if depth), 0)
    return [depth if i == first else 0 for i, depth in enumerate(depths)]


def trial_lengths(candidates: list[Candidate], costs: StepCosts, draft_s: float, *, unseen: bool = False) -> list[int]:
    """Return the lengths of a trial: the tokens that pay if drafting and reading cost nothing, TRIAL_TOKENS at most.

    A token pays whose chance is above the part of a plain step that a row adds for each sequence, by MIN_GAIN. A
    row counts as free while the costs are rough, since only steps of several rows correct them. `unseen`: texts are
    decoded plainly, so no drafts of new texts were seen. Each chance is then at least that of a new tenant. A
    sequence takes part if its text is read within `draft_s`, the time of drafting; if there is none, the first to
    be read takes part.
    """
    size = len(candidates)
    rows_s = costs.seconds(size) if costs.is_rough else costs.seconds((1 + TRIAL_TOKENS) * size)
    row = (rows_s / costs.seconds(size) - 1.0) / TRIAL_TOKENS
    least = MIN_GAIN * (1.0 + row) - 1.0
    known = [c.expectation.survival(min(TRIAL_TOKENS, c.limit)) for c in candidates]
    hoped = AcceptanceEstimate().survival(TRIAL_TOKENS) if unseen else [0.0] * TRIAL_TOKENS
    depths = [sum([max(chances) > least for chances in zip(own, hoped, strict=False)]) for own in known]
    first_s = min((c.read_s for c, depth in zip(candidates, depths, strict=True) if depth), default=0.0)
    return [depth if c.read_s <= max(first_s, draft_s) else 0 for c, depth in zip(candidates, depths, strict=True)]

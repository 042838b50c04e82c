"""Draft as AdaSpec does (`lab.adaspec`), from a recording.

All of a round is drafted in one call. A later call for the same round returns no guesses, which ends the path.
"""

from collections.abc import Callable
from typing import Any

from app.engine.step_costs import StepCosts
from app.state import BatchEntry, CachedSequence, Guess
from lab.adaspec import AdaSpec
from lab.simulate.models import LogGuesser, token_seconds


class AdaSpecGuesser(LogGuesser):
    """A drafter's model that returns as many of the log's guesses as AdaSpec drafts and keeps."""

    def __init__(self, *of_log: Any, rule: AdaSpec) -> None:
        """`of_log`: a LogGuesser's arguments."""
        super().__init__(*of_log)
        self._rule = rule
        self._drafted_s: dict[str, float] = {}  # by request: the end of its last round's drafting

    def guess(self, works: list[BatchEntry], depth: int, floor: float) -> list[list[Guess]]:
        """Return what is drafted and kept for each batch entry, and let its time pass; the batch has one depth."""
        if not all(work.final for work in works):  # a piece of a prompt
            return super().guess(works, depth, floor)
        if any(self._drafted_s.get(work.sequence.id) == self._clock.now_s for work in works):
            return []
        chains = [self._chain(work.sequence) for work in works]
        lengths = [work.start + len(work.tokens) for work in works]
        rest = [(guess.confidence for guess in chain) for chain in chains]
        steps, kept = self._rule.draft(
            lengths,
            self._slowdown * token_seconds(self._log, lengths),
            lambda: [next(own, 0.0) for own in rest],
        )
        self._pass(works, steps)
        self._drafted_s.update((work.sequence.id, self._clock.now_s) for work in works)
        return [chain[:count] for chain, count in zip(chains, kept, strict=True)]

    def release(self, sequence: CachedSequence) -> None:
        super().release(sequence)
        self._drafted_s.pop(sequence.id, None)


def adaspec_guessers(costs: StepCosts) -> Callable[..., AdaSpecGuesser]:
    """Return what makes drafters' models (`Setting.guesser`), each with a rule of its own, since a rule learns."""
    return lambda *of_log: AdaSpecGuesser(*of_log, rule=AdaSpec(costs))

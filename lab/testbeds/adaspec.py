"""Draft as AdaSpec does (arXiv:2503.05096, by its published code): one depth for a batch, while goodput would rise.

    goodput = (sequences + sum of cumulative products of confidences) / (drafting + verifying)

A step is plain if one token of the running mean confidence does not raise goodput. After each drafted token the next
one is predicted with that mean, and drafting stops for the whole batch when goodput would fall. Then the least likely
tokens are trimmed down to the next smaller captured size, if goodput does not fall. Costs are the world's own, as
AdaSpec's profile at the start would find them. Its test of a step's time is commented out in the published code.

All of a round is drafted in one call. A later call for the same round returns no guesses, which ends the path.
"""

from collections.abc import Callable
from collections.abc import Sequence as Listed
from itertools import accumulate
from operator import mul

from app.engine.step_costs import StepCosts
from app.state import BatchEntry, CachedSequence, Guess
from lab.simulate.log import DrafterLog, Text
from lab.simulate.models import Device, LogGuesser, SimClock, token_seconds

Goodput = Callable[[float, int], float]  # of expected right tokens in so many rows
CAPTURED = (1, 2, 4, 8, 16, 32)  # sizes of steps; beyond, multiples of the last


class AdaSpecGuesser(LogGuesser):
    """A drafter's model that returns as many of the log's guesses as AdaSpec drafts and keeps."""

    def __init__(
        self,
        name: str,
        texts: Listed[Text],
        log: DrafterLog,
        clock: SimClock,
        slowdown: float = 1.0,
        device: Device | None = None,
        *,
        costs: StepCosts,
        most: int,
    ) -> None:
        super().__init__(name, texts, log, clock, slowdown, device)
        self._costs = costs
        self._most = most
        self._drafted_s: dict[str, float] = {}  # by request: the end of its last round's drafting
        self._sum, self._count = 0.0, 0  # of the confidences so far

    def guess(self, works: list[BatchEntry], depth: int, floor: float) -> list[list[Guess]]:
        """Return what is drafted and kept for each batch entry, and let its time pass; the batch has one depth."""
        if not all(work.final for work in works):  # a piece of a prompt
            return super().guess(works, depth, floor)
        if any(self._drafted_s.get(work.sequence.id) == self._clock.now_s for work in works):
            return []
        chains = [self._chain(work.sequence)[: self._most] for work in works]
        lengths = [work.start + len(work.tokens) for work in works]
        token_s = token_seconds(self._log, lengths)
        reading = self._costs.reading

        def goodput(tokens: float, steps: int, rows: int) -> float:
            each = rows / max(1, len(works))
            verify_s = self._costs.seconds(rows) + reading.step_s((length, each) for length in lengths)
            return (len(works) + tokens) / (steps * token_s + verify_s)

        steps, worth, batch = 0, 0.0, len(works)
        survival = [1.0] * batch
        while steps < self._most:
            mean = self._sum / self._count if self._count else 1.0
            more = worth + mean * sum(survival)
            if goodput(more, steps + 1, batch * (steps + 2)) <= goodput(worth, steps, batch * (steps + 1)):
                break
            steps += 1
            for i, chain in enumerate(chains):
                sure = chain[steps - 1].confidence if len(chain) >= steps else 0.0
                survival[i] *= sure
                self._sum, self._count = self._sum + sure, self._count + 1
            worth += sum(survival)
        drafted = [chain[:steps] for chain in chains]
        self._pass(works, steps)
        self._drafted_s.update((work.sequence.id, self._clock.now_s) for work in works)
        return self._trimmed(drafted, lambda tokens, rows: goodput(tokens, steps, rows))

    def release(self, sequence: CachedSequence) -> None:
        super().release(sequence)
        self._drafted_s.pop(sequence.id, None)

    def _trimmed(self, drafted: list[list[Guess]], goodput: Goodput) -> list[list[Guess]]:
        """Leave out the least likely tokens down to the next smaller captured size, if goodput does not fall."""
        nodes = [
            (survival, i)
            for i, chain in enumerate(drafted)
            for survival in accumulate((guess.confidence for guess in chain), mul)
        ]
        rows = len(drafted) + len(nodes)
        size = _smaller(rows)
        kept = max(0, size - len(drafted))
        best = sorted(nodes, reverse=True)
        whole, trimmed = sum(own for own, _ in best), sum(own for own, _ in best[:kept])
        if size < len(drafted) or goodput(trimmed, size) < goodput(whole, rows):
            return drafted
        counts = [0] * len(drafted)
        for _, i in best[:kept]:
            counts[i] += 1
        return [chain[:count] for chain, count in zip(drafted, counts, strict=True)]


def _smaller(rows: int) -> int:
    if rows > CAPTURED[-1]:
        return (rows - 1) // CAPTURED[-1] * CAPTURED[-1]
    return max((size for size in CAPTURED if size < rows), default=0)

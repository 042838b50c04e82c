"""Decide how many tokens are drafted as AdaSpec does (arXiv:2503.05096, by its published code): one depth for a batch.

    goodput = (sequences + sum of cumulative products of confidences) / (drafting + verifying)

A step is plain if one token of the running mean confidence does not raise goodput. After each drafted token the next
one is predicted with that mean, and drafting stops for the whole batch when goodput would fall. Then the least likely
tokens are trimmed down to the next smaller captured size, if goodput does not fall. Its test of a step's time is
commented out in the published code.
"""

from collections.abc import Callable
from collections.abc import Sequence as Listed
from itertools import accumulate
from operator import mul

from app.engine.step_costs import StepCosts

Goodput = Callable[[float, int], float]  # of expected right tokens in so many rows
MOST = 8  # tokens of a chain
CAPTURED = (1, 2, 4, 8, 16, 32)  # sizes of steps; beyond, multiples of the last


class AdaSpec:
    """`costs`: a step's, as AdaSpec's profile at the start would find them."""

    def __init__(self, costs: StepCosts, most: int = MOST) -> None:
        self._costs = costs
        self._most = most
        self._sum, self._count = 0.0, 0  # of the confidences so far

    def draft(self, lengths: Listed[int], token_s: float, guess: Callable[[], Listed[float]]) -> tuple[int, list[int]]:
        """Return the tokens drafted for each sequence, and those of each that are kept.

        `lengths`: tokens so far; `token_s`: seconds of a token for all; `guess` drafts one more for each and returns
        its confidences.
        """
        batch, reading = len(lengths), self._costs.reading

        def goodput(tokens: float, steps: int, rows: int) -> float:
            verify_s = self._costs.seconds(rows) + reading.step_s((length, rows / batch) for length in lengths)
            return (batch + tokens) / (steps * token_s + verify_s)

        steps, worth = 0, 0.0
        survival = [1.0] * batch
        chains: list[list[float]] = [[] for _ in lengths]
        while steps < self._most:
            mean = self._sum / self._count if self._count else 1.0
            more = worth + mean * sum(survival)
            if goodput(more, steps + 1, batch * (steps + 2)) <= goodput(worth, steps, batch * (steps + 1)):
                break
            steps += 1
            for i, sure in enumerate(guess()):
                chains[i].append(sure)
                survival[i] *= sure
                self._sum, self._count = self._sum + sure, self._count + 1
            worth += sum(survival)
        return steps, _trimmed(chains, lambda tokens, rows: goodput(tokens, steps, rows))


def _trimmed(chains: list[list[float]], goodput: Goodput) -> list[int]:
    """Leave out the least likely tokens down to the next smaller captured size, if goodput does not fall."""
    nodes = [(survival, i) for i, chain in enumerate(chains) for survival in accumulate(chain, mul) if survival]
    rows = len(chains) + len(nodes)
    size = _smaller(rows)
    kept = max(0, size - len(chains))
    best = sorted(nodes, reverse=True)
    whole, trimmed = sum(own for own, _ in best), sum(own for own, _ in best[:kept])
    if size < len(chains) or goodput(trimmed, size) < goodput(whole, rows):
        return [len(chain) for chain in chains]
    counts = [0] * len(chains)
    for _, i in best[:kept]:
        counts[i] += 1
    return counts


def _smaller(rows: int) -> int:
    if rows > CAPTURED[-1]:
        return (rows - 1) // CAPTURED[-1] * CAPTURED[-1]
    return max((size for size in CAPTURED if size < rows), default=0)

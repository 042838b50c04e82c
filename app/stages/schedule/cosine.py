"""Select a batch by CoSine's objective (papers 1.4), a baseline.

    min over B, gamma   T(B) / |B| + lambda * Gamma,    Gamma = sum of gamma_i
    subject to          T(B) <= T_max,  Gamma <= Gamma_max,  rows within the step

T is the longer of drafting and verifying, as in CoSine's steady pipeline, by measured costs;
reading the contexts is a part of verifying. Gamma is what was drafted, within its cap: chosen by
the objective as we know it, it would always be 0. The caller checks memory. CoSine's solver is not
known; here it is windows over the pool sorted by length, so that one very long sequence does not
stretch a batch. Where Gamma > Gamma_max the sequence with the most candidates loses one at a time
(papers 1.5). Two rules are Paceline's own: every window holds the sequence that has waited longest,
or some would never be in one; and a single sequence may take longer than T_max, since some batch
must run.
"""

from collections.abc import Callable
from collections.abc import Sequence as Listed
from dataclasses import dataclass

from app.estimates.step_costs import StepCosts
from app.stages.schedule.tree_budget import BatchRows
from app.state import Sequence, Tree


@dataclass(frozen=True, slots=True)
class Pooled:
    """A sequence that is ready.

    `length` counts its tokens, `rows` those it needs without candidates, `candidates` its draft
    tokens; it waits since `since_s` (wall clock).
    """

    length: int
    rows: int
    candidates: int
    since_s: float


@dataclass(frozen=True, slots=True)
class Objective:
    """Hold weights and caps. The paper's values are not known; these do not bind for a small model."""

    token_weight_s: float = 1e-4  # lambda, seconds a candidate
    max_s: float = 1.0  # T_max
    max_candidates: int = 64  # Gamma_max

    def value(self, batch_s: float, size: int, candidates: int) -> float:
        """Return what is minimised, in seconds."""
        return batch_s / size + self.token_weight_s * candidates


class CosineSelection:
    """Select by CoSine's objective."""

    def __init__(self, draft_s: Callable[[int, int], float]) -> None:
        """Price drafts by `draft_s(batch, depth)`, in seconds."""
        self._draft_s = draft_s

    def select(self, sequences: Listed[Sequence], trees: Listed[Tree], rows: BatchRows) -> Listed[int | None]:
        """Return the nodes of each sequence's tree; None leaves the sequence out of the step."""
        pool = [
            Pooled(len(s.tokens), s.uncached, len(tree), s.stats.last_token_s or s.record.created_s)
            for s, tree in zip(sequences, trees, strict=True)
        ]
        return choose(pool, rows.costs, self._draft_s, rows.most - rows.chunk)


def choose(
    pool: Listed[Pooled],
    costs: StepCosts,
    draft_s: Callable[[int, int], float],
    max_rows: int,
    objective: Objective | None = None,
) -> list[int | None]:
    """Return for each of the pool how many of its candidates to verify; None leaves it out of the batch.

    `draft_s(batch, depth)` returns the seconds of drafting. Windows are tried from every start, and
    grow by the next longer sequence to any size: O(n^2) of them, n being a verifier's sequences.
    """
    objective = objective or Objective()
    if not pool:
        return []
    order = sorted(range(len(pool)), key=lambda i: (pool[i].length, i))
    oldest = min(range(len(pool)), key=lambda i: (pool[i].since_s, i))
    place = order.index(oldest)
    best, best_value = _kept([oldest], pool, max_rows, objective), float("inf")
    for first in range(place + 1):
        for end in range(place + 1, len(order) + 1):
            window = order[first:end]
            if sum(pool[i].rows for i in window) > max_rows:
                break
            kept = _kept(window, pool, max_rows, objective)
            batch_s = _seconds(kept, pool, costs, draft_s)
            value = objective.value(batch_s, len(kept), sum(kept.values()))
            if value < best_value and (batch_s <= objective.max_s or len(window) == 1):
                best, best_value = kept, value
    return [best.get(i) for i in range(len(pool))]


def _kept(window: list[int], pool: Listed[Pooled], max_rows: int, objective: Objective) -> dict[int, int]:
    """Return the window's candidates, the largest shrunk until they fit."""
    kept = {i: pool[i].candidates for i in window}
    room = max(0, min(objective.max_candidates, max_rows - sum(pool[i].rows for i in window)))
    for _ in range(sum(kept.values()) - room):
        largest = max(kept, key=kept.__getitem__)
        kept[largest] -= 1
    return kept


def _seconds(
    kept: dict[int, int], pool: Listed[Pooled], costs: StepCosts, draft_s: Callable[[int, int], float]
) -> float:
    """Return T of a batch: the slower of drafting the next candidates and verifying these."""
    rows = {i: pool[i].rows + candidates for i, candidates in kept.items()}
    reading_s = sum(costs.reading.seconds(pool[i].length, own) for i, own in rows.items())
    return max(costs.seconds(sum(rows.values())) + reading_s, draft_s(len(kept), max(kept.values())))

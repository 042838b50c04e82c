"""Steer the draft length by how idle the verifier is, as CoSine does (papers 1.5), a baseline.

Negative feedback: while the verifier idles more drafters take part or more tokens are drafted; where
drafts pile up before it, which leaves it no time to idle, fewer. One length for all requests. Drafters
come first and go last, since those on nodes of their own take next to no time more. The paper's
thresholds, steps and order are not known.
"""

from collections.abc import Mapping

from app.estimates.draft_costs import DraftCosts
from app.estimates.step_costs import StepCosts
from app.stages.length.marginal import Candidate

FIRST_LENGTH, FIRST_DRAFTERS = 4, 2
IDLE, BUSY = 0.3, 0.1  # idle parts of the time from which drafts grow, and below which they shrink
MEMORY = 0.2  # weight of a step in the mean
SETTLING = 5  # steps after a change before the next one


class CosineLength:
    """Ask all requests for one length, of one number of drafters: both follow the verifier's idle part of the time."""

    def __init__(self, most_drafters: int) -> None:
        """Let at most `most_drafters` model drafters take part in a round."""
        self._most_drafters = most_drafters
        self._drafters = min(FIRST_DRAFTERS, most_drafters)
        self._length = FIRST_LENGTH
        self._idle = (IDLE + BUSY) / 2
        self._decided_s: float | None = None
        self._steps = 0  # since the last change

    @property
    def drafters(self) -> int:
        """Return how many model drafters may take part in a round."""
        return self._drafters

    def depths(
        self,
        candidates: Mapping[str, Candidate],
        costs: StepCosts,
        drafting: DraftCosts,
        now_s: float,
        committed: Mapping[str, int],
    ) -> list[int]:
        """Update the idle part by the step that these candidates were in, then choose the length."""
        longest = max((c.limit for c in candidates.values()), default=0)
        if self._decided_s is not None and now_s > self._decided_s:
            step_s = costs.seconds(len(candidates) * (1 + self._length * self._drafters))
            self._update(max(0.0, 1.0 - step_s / (now_s - self._decided_s)), longest)
        self._decided_s = now_s
        return [min(self._length, c.limit) for c in candidates.values()]

    def _update(self, idle: float, longest: int) -> None:
        self._idle += MEMORY * (idle - self._idle)
        self._steps += 1
        if self._steps <= SETTLING:
            return
        before = self._length, self._drafters
        if self._idle > IDLE and self._drafters < self._most_drafters:
            self._drafters += 1
        elif self._idle > IDLE and self._length < longest:
            self._length += 1
        elif self._idle < BUSY and self._length > 1:
            self._length -= 1
        elif self._idle < BUSY and self._drafters > 1:
            self._drafters -= 1
        if (self._length, self._drafters) != before:
            self._steps = 0

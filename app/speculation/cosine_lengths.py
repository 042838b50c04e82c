"""Steer the draft length by how idle the verifier is, as CoSine does (papers 1.5), a baseline.

Negative feedback: while the verifier idles more drafters take part or more tokens are drafted; where
drafts pile up before it, which leaves it no time to idle, fewer. One length for all requests. Drafters
come first and go last, since those on nodes of their own take next to no time more. A token more also
takes drafting longer, which a verifier that waits for drafts idles through: one that leaves it no busier
is taken back, or the feedback would not be negative. The paper's thresholds, steps and order are not known.
"""

from collections.abc import Mapping

from app.engine.step_costs import StepCosts
from app.speculation.draft_costs import DraftCosts
from app.speculation.marginal import Candidate

FIRST_LENGTH, FIRST_DRAFTERS = 4, 2
IDLE, BUSY = 0.1, 0.03  # idle parts of the time from which drafts grow, and below which they shrink
MEMORY = 0.2  # weight of a step in the mean
SETTLING = 5  # steps after a change before the next one
LEAST_DROP = 0.05  # of the idle part, by which a token more must make the verifier busier to stay
AGAIN = 64  # steps after a token that was taken back before the next one


class CosineLength:
    """Ask all requests for one length, of one number of drafters: both follow the verifier's idle part of the time."""

    def __init__(self, most_drafters: int) -> None:
        """Let at most `most_drafters` model drafters take part in a round."""
        self._most_drafters = most_drafters
        self._drafters = min(FIRST_DRAFTERS, most_drafters)
        self._length = FIRST_LENGTH
        self._idle: float | None = None  # mean idle part, recent steps first
        self._decided_s: float | None = None
        self._steps = 0  # since the last change
        self._trial_idle: float | None = None  # the idle part before the token that is being tried
        self._barred = 0  # steps until the next token may be tried

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
            self._update(max(0.0, 1.0 - costs.last_s / (now_s - self._decided_s)), longest)
        self._decided_s = now_s
        return [min(self._length, c.limit) for c in candidates.values()]

    def _update(self, idle: float, longest: int) -> None:
        mean = self._idle = idle if self._idle is None else self._idle + MEMORY * (idle - self._idle)
        self._steps += 1
        self._barred -= 1
        if self._steps <= SETTLING:
            return
        before, tried = (self._length, self._drafters), self._trial_idle
        self._trial_idle = None
        if tried is not None and mean > tried - LEAST_DROP:
            self._length -= 1
            self._barred = AGAIN
        elif mean > IDLE and self._drafters < self._most_drafters:
            self._drafters += 1
        elif mean > IDLE and self._length < longest and self._barred <= 0:
            self._length, self._trial_idle = self._length + 1, mean
        elif mean < BUSY and self._length > 1:
            self._length -= 1
        elif mean < BUSY and self._drafters > 1:
            self._drafters -= 1
        if (self._length, self._drafters) != before:
            self._steps = 0

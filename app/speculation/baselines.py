"""Decide draft lengths by other rules than marginal gain (`app.speculation.marginal`), as baselines."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from app.engine.step_costs import StepCosts
from app.speculation.draft_costs import DraftCosts
from app.speculation.draft_modes import DraftModes
from app.speculation.faser import FaserLength
from app.speculation.length_protocol import DraftBatch, DraftSeconds, LengthDecision, LengthPolicy, LengthSearch
from app.speculation.marginal import Candidate

MAX_KNOWN = 4096  # requests whose length at the last decision is kept
# Of CoSine's control:
FIRST_LENGTH, FIRST_DRAFTERS = 4, 2
IDLE, BUSY = 0.1, 0.03  # idle parts of the time from which drafts grow, and below which they shrink
MEMORY = 0.2  # weight of a step in the mean
SETTLING = 5  # steps after a change before the next one
LEAST_DROP = 0.05  # of the idle part, by which a token more must make the verifier busier to stay
AGAIN = 64  # steps after a token that was taken back before the next one


def length_policy(kind: str, most_drafters: int) -> LengthPolicy | None:
    """Make a baseline length policy for rounds of at most `most_drafters`; None for marginal gain."""
    name, _, number = kind.partition(":")
    if number:
        return FixedLength(int(number))
    if name == "cosine":
        return CosineLength(most_drafters)
    return FaserLength() if name == "faser" else None


def length_search(kind: str) -> LengthSearch | None:
    name, _, number = kind.partition(":")
    return FixedLength(int(number)) if name == "fixed" else FaserLength() if kind == "faser" else None


class CommittedCounts:
    def __init__(self) -> None:
        self._known: OrderedDict[str, int] = OrderedDict()  # tokens of each request at its last decision

    def since(self, lengths: Mapping[str, int]) -> dict[str, int]:
        """Return the tokens since the last call, of requests that were in one; `lengths`: of all their tokens."""
        committed = {one: length - self._known[one] for one, length in lengths.items() if one in self._known}
        for one, length in lengths.items():
            self._known[one] = length
            self._known.move_to_end(one)
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        return committed


class BaselineController:
    def __init__(self, policy: LengthPolicy, *, is_tree: bool = False) -> None:
        """With `is_tree` verify trees, else main branches."""
        self.modes: Final = DraftModes()
        self._policy = policy
        self.is_tree: Final = is_tree
        self._committed = CommittedCounts()

    @property
    def drafters(self) -> int | None:
        return self._policy.drafters

    def plan(self, batch: DraftBatch) -> LengthDecision:
        candidates = dict(zip(batch.lengths, batch.candidates, strict=True))
        depths = self._policy.depths(
            candidates, batch.costs, self.modes.with_models.costs, batch.now_s, self._committed.since(batch.lengths)
        )
        return LengthDecision(depths)


class FixedLength:
    drafters: Final = None

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    def depths(
        self,
        candidates: Mapping[str, Candidate],
        costs: StepCosts,
        drafting: DraftCosts,
        now_s: float,
        committed: Mapping[str, int],
    ) -> list[int]:
        return self.search(candidates, costs, drafting)

    def update(self, committed: Mapping[str, int]) -> None:
        """Learn nothing."""

    def search(self, candidates: Mapping[str, Candidate], costs: StepCosts, drafting: DraftSeconds) -> list[int]:
        return [min(self._tokens, c.limit) for c in candidates.values()]

    def record(self, lengths: Mapping[str, int]) -> None:
        """Record nothing."""


class CosineLength:
    """Follow the idle part of the verifier's time with one length for all requests (CoSine, papers 1.5).

    While the verifier idles, more drafters take part or more tokens are drafted; while drafts pile up before it,
    fewer. Drafters come first and go last, since those on nodes of their own add next to no time. A token more that
    leaves the verifier no busier is taken back. The paper's thresholds, steps and order are not known.
    """

    def __init__(self, most_drafters: int) -> None:
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
        return self._drafters

    def depths(
        self,
        candidates: Mapping[str, Candidate],
        costs: StepCosts,
        drafting: DraftCosts,
        now_s: float,
        committed: Mapping[str, int],
    ) -> list[int]:
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

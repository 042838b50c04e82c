"""Choose lengths, chunk and split together, as FASER's controller does (papers 2.3, 2.4).

A small grid of ways to work is tried, the length search inside. A round of B sequences, R rows, T = T(R) and D =
D(drafts) takes, with T and D as learnt under the split:

    in turn      T + D
    chunk of c   T + p max(0, D' - T) + (1 - p) D,   p: the chance that all chunks are right and the token behind each,
                                                     which the target adds; D': of c and that token
    in halves    2 max(T(R / 2), D(half))

The rule is ours; the paper's is not known.
"""

import logging
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Listed
from dataclasses import dataclass
from math import prod
from typing import Final

from app.engine.step_costs import StepCosts
from app.placement.splits import Split
from app.speculation.baselines import CommittedCounts
from app.speculation.draft_costs import DEFAULT_HOP_S, DraftCosts
from app.speculation.draft_modes import DraftModes
from app.speculation.length_protocol import DraftBatch, LengthDecision, LengthSearch
from app.speculation.marginal import Candidate

log = logging.getLogger(__name__)
CHUNKS = (1, 2, 3, 4, 6, 8)  # draft tokens tried; the whole draft beside them
MARGIN = 1.05  # by which another way must be faster: costs and chances are estimates
AFTER = 8  # decisions in which it must be, one after the other
FIRST = 8  # decisions in which the first way is kept, to learn what drafting takes


@dataclass(frozen=True, slots=True)
class Profile:
    splits: tuple[Split, ...]
    steps: StepCosts
    guesses: DraftCosts  # of models alone, without the way to them

    def draft_s(self, split: int, batch: float, depth: int) -> float:
        return DEFAULT_HOP_S + self.guesses.at(split).guess_s(max(1, round(batch)), depth) if depth else 0.0


@dataclass(frozen=True, slots=True)
class BatchLoad:
    candidates: Mapping[str, Candidate]
    sequences: int

    @property
    def scale(self) -> float:
        return max(1.0, self.sequences / len(self.candidates))


@dataclass(frozen=True, slots=True)
class JointPlan:
    """Lengths for the candidates, and the way to work."""

    lengths: list[int]
    split: int
    chunk: int | None = None  # draft tokens to wait for while drafters run ahead; None: all
    in_halves: bool = False
    pace: float = 0.0  # expected tokens a second of all sequences

    @property
    def way(self) -> tuple[int, bool]:
        return self.split, self.in_halves


class JointController:
    """Decide lengths, chunk and split; a way to work is kept until another one was better for some decisions."""

    drafters: Final = None
    is_tree: Final = False

    def __init__(self, search: LengthSearch, splits: tuple[Split, ...]) -> None:
        self.modes: Final = DraftModes()
        self._search = search
        self._splits = splits
        self._committed = CommittedCounts()
        self._plan = JointPlan([], 0)
        self._decisions = 0
        self._better = 0  # decisions on end in which another way was clearly better

    def plan(self, batch: DraftBatch) -> LengthDecision:
        load = BatchLoad(dict(zip(batch.lengths, batch.candidates, strict=True)), batch.load)
        self._search.update(self._committed.since(batch.lengths))
        plans = joint_plans(Profile(self._splits, batch.costs, self.modes.with_models.costs), load, self._search)
        chosen = self._choose(plans)
        if chosen.way != self._plan.way:
            log.debug("split %d, in halves: %s, chunk %s", chosen.split, chosen.in_halves, chosen.chunk)
        self._plan = chosen
        self._search.record(dict(zip(batch.lengths, chosen.lengths, strict=True)))
        return LengthDecision(chosen.lengths, split=chosen.split)

    @property
    def chunk(self) -> int | None:
        return self._plan.chunk

    def runs_ahead(self, core_share: float) -> bool:
        return self._plan.chunk is not None

    def goes_together(self, costs: StepCosts, sequences: int, draft_s: Callable[[int], float]) -> bool:
        return not self._plan.in_halves

    def _choose(self, plans: list[JointPlan]) -> JointPlan:
        """Return the first plan, or that of the present way where none is clearly better."""
        present = next((plan for plan in plans if plan.way == self._plan.way), None)
        self._decisions += 1
        if present is not None:
            is_better = self._decisions > FIRST and plans[0].pace > MARGIN * present.pace
            self._better = self._better + 1 if is_better else 0
            if self._better < AFTER:
                return present
        self._better = 0
        return plans[0]


def joint_plans(profile: Profile, load: BatchLoad, search: LengthSearch) -> list[JointPlan]:
    """Return the best plan of each way to work, the fastest first."""
    found: list[JointPlan] = []
    for number, split in enumerate(profile.splits):
        if split.at_once:
            found.append(_in_chunks(profile, load, search, number))
            if load.sequences > 1:
                found.append(_in_halves(profile, load, search, number))
        else:
            found.append(_in_turn(profile, load, search, number))
    return sorted(found, key=lambda plan: -plan.pace)


def _in_turn(profile: Profile, load: BatchLoad, search: LengthSearch, split: int) -> JointPlan:
    steps = profile.steps.at(split)
    lengths = search.search(load.candidates, steps, _Exposed(profile, split))
    round_s = _verify_s(steps, load, lengths, load.scale) + profile.draft_s(split, *_asked(lengths, load.scale))
    return JointPlan(lengths, split, pace=_tokens(load, lengths) / round_s)


def _in_chunks(profile: Profile, load: BatchLoad, search: LengthSearch, split: int) -> JointPlan:
    steps = profile.steps.at(split)
    longest = search.search(load.candidates, steps, _Exposed(profile, split))
    deepest = max(longest, default=0)
    plans = []
    for chunk in sorted({size for size in CHUNKS if size < deepest} | {deepest}):
        lengths = [min(chunk, length) for length in longest]
        verify_s = _verify_s(steps, load, lengths, load.scale)
        drafted, depth = _asked(lengths, load.scale)
        draft_s = profile.draft_s(split, drafted, depth)
        ahead_s, kept = profile.draft_s(split, drafted, depth + 1), _all_right(load, lengths)
        round_s = verify_s + kept * max(0.0, ahead_s - verify_s) + (1.0 - kept) * draft_s
        plans.append(JointPlan(lengths, split, chunk, pace=_tokens(load, lengths) / round_s))
    return max(plans, key=lambda plan: plan.pace)


def _in_halves(profile: Profile, load: BatchLoad, search: LengthSearch, split: int) -> JointPlan:
    steps, half = profile.steps.at(split), load.scale / 2.0
    hidden_s = steps.seconds(max(1, round(len(load.candidates) * half)))
    lengths = search.search(load.candidates, steps, _Exposed(profile, split, hidden_s))
    verify_s = _verify_s(steps, load, lengths, half)
    round_s = 2.0 * max(verify_s, profile.draft_s(split, *_asked(lengths, half)))
    return JointPlan(lengths, split, in_halves=True, pace=_tokens(load, lengths) / round_s)


class _Exposed:
    """The drafting seconds that a round waits for, where `hidden_s` of them pass beside a step."""

    def __init__(self, profile: Profile, split: int, hidden_s: float = 0.0) -> None:
        self._profile, self._split, self._hidden_s = profile, split, hidden_s
        self._known: dict[tuple[int, int], float] = {}

    def seconds(self, batch: int, depth: int) -> float:
        if (batch, depth) not in self._known:
            draft_s = self._profile.draft_s(self._split, batch, depth)
            self._known[batch, depth] = max(0.0, draft_s - self._hidden_s)
        return self._known[batch, depth]


def _verify_s(steps: StepCosts, load: BatchLoad, lengths: Listed[int], scale: float) -> float:
    pairs = [*zip(load.candidates.values(), lengths, strict=True)]
    rows = sum(1 + length for _, length in pairs) * scale
    return steps.seconds(max(1, round(rows))) + scale * steps.reading.step_s((c.context, 1 + n) for c, n in pairs)


def _tokens(load: BatchLoad, lengths: Listed[int]) -> float:
    pairs = zip(load.candidates.values(), lengths, strict=True)
    return load.scale * sum(1.0 + sum(c.expectation.survival(length)) for c, length in pairs)


def _asked(lengths: Listed[int], scale: float) -> tuple[float, int]:
    return scale * sum(length > 0 for length in lengths), max(lengths, default=0)


def _all_right(load: BatchLoad, lengths: Listed[int]) -> float:
    """Return the chance that all drafts are right, and the drafter's next token as well."""
    pairs = zip(load.candidates.values(), lengths, strict=True)
    return prod(c.expectation.survival(length + 1)[-1] for c, length in pairs if length) ** load.scale

"""Calibrate drafters: map the confidence that one gives to the share of its tokens that are right.

Confidences and committed tokens go in, chances come out. Each drafter has ten bins of confidence;
a bin keeps, with exponential forgetting, how far the truth lay above the confidence. The calibrated
value is the confidence plus that error, interpolated between the bins' centres and pulled to the
confidence itself (identity) while there is little evidence. Cheap enough for every node.

All of it is decaying sums, so that several fusers learn one map together and a restarted one goes
on from it (`app.store.shared_stats`): beside the stored part, each sum keeps what was added since
and the share of the stored part that is left. One thread updates; another may call `changes` and
`absorb`.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from app.messages import Draft
from app.state import Change, Tree

BINS = 10
SIZE = 2 * BINS + 2 * 3 * BINS + 1  # numbers in a drafter's vector of sums
PRIOR_WEIGHT = 8.0  # observations the identity counts for in a bin
DECAY = 0.995  # of a bin's past at each new observation in it: a memory of about 200
REPORT_GROWTH = 1.001  # of an observation's weight in a report: a memory of about 1000 over all bins
FLOOR = 0.001  # nothing is certain: calibrated values lie in [FLOOR, 1 - FLOOR]
_CEILING = 1.0 - FLOOR
GROUP = "calibration"  # of the store's sums
MAX_DRAFTERS = 256  # names come from drafts, which are not trusted; beyond this new ones stay uncalibrated


@dataclass(frozen=True, slots=True)
class CalibrationReport:
    """One drafter's record, recent observations weighing most.

    Errors are expected calibration errors.
    """

    observations: int
    acceptance: float
    raw_error: float
    calibrated_error: float  # of the value that was used before each verdict


class Calibration:
    """The calibration of every drafter; an unknown drafter's confidence is taken as it is.

    Implements `app.store.shared_stats.SharedStats`.
    """

    def __init__(self) -> None:
        self._drafters: dict[str, _Map] = {}
        self._lock = threading.Lock()

    def value(self, drafter: str, confidence: float) -> float:
        """Return the chance that a token with this confidence is right if its parent is."""
        return self.values(drafter, (confidence,))[0]

    def values(self, drafter: str, confidences: Sequence[float]) -> list[float]:
        """Return these chances of several tokens of one drafter."""
        known = self._drafters.get(drafter)
        return [*map(_bounded, confidences)] if known is None else known.values(confidences)

    def update(self, drafter: str, confidence: float, accepted: bool) -> None:
        """Learn that a token with this confidence, below a right parent, was right or wrong."""
        if 0.0 <= confidence <= 1.0:
            with self._lock:
                known = self._of(drafter)
                if known is not None:
                    known.add(confidence, accepted)

    def update_from_drafts(self, drafts: Iterable[Draft], committed: Sequence[int]) -> None:
        """Learn from every node that `committed`, the tokens after the drafts' base, can judge."""
        for drafter, confidence, accepted in judge(drafts, committed):
            self.update(drafter, confidence, accepted)

    def report(self) -> dict[str, CalibrationReport]:
        """Report each drafter's acceptance, and its errors before and after calibration."""
        with self._lock:
            return {drafter: known.report() for drafter, known in self._drafters.items() if known.has_seen}

    def info(self) -> dict[str, dict[str, float]]:
        """Return `report` as a heartbeat carries it: plain numbers, rounded to four digits."""
        return {name: {k: round(v, 4) for k, v in asdict(own).items()} for name, own in self.report().items()}

    def groups(self) -> tuple[str, ...]:
        """Name the one group.

        Tenants share it: a drafter's confidence tells nothing of the text.
        """
        return (GROUP,)

    def changes(self, group: str) -> dict[str, Change]:
        """Take what was learnt since the last call, by drafter (see `SharedStats`)."""
        with self._lock:
            return {drafter: known.take() for drafter, known in self._drafters.items() if known.is_changed}

    def absorb(self, group: str, sums: Mapping[str, Sequence[float]]) -> None:
        """Take over the drafters' sums as the store has them (see `SharedStats`)."""
        with self._lock:
            for drafter, vector in sums.items():
                known = self._of(drafter) if len(vector) == SIZE else None
                if known is not None:
                    known.base = list(vector)

    def _of(self, drafter: str) -> "_Map | None":
        if drafter not in self._drafters and len(self._drafters) < MAX_DRAFTERS:
            self._drafters[drafter] = _Map()
        return self._drafters.get(drafter)


class RawConfidence(Calibration):
    """A calibration that learns, for its reports, and takes every drafter's confidence as it is."""

    def values(self, drafter: str, confidences: Sequence[float]) -> list[float]:
        """Return the confidences, kept away from 0 and 1."""
        return [*map(_bounded, confidences)]


def judge(drafts: Iterable[Draft], committed: Sequence[int]) -> Iterator[tuple[str, float, bool]]:
    """Yield (drafter, confidence, accepted) of each node that `committed` can judge: its parent is right.

    `committed` are the tokens after the drafts' base, in later rounds too: nodes that were never
    verified count as well. Malformed drafts yield what can be judged before their first fault.
    """
    for draft in drafts:
        size = min(len(draft.tokens), len(draft.parents), len(draft.confidences))
        sound = next((i for i, parent in enumerate(draft.parents[:size]) if not 0 <= parent <= i), size)
        tree = Tree([*draft.tokens[:sound]], [*draft.parents[:sound]])
        places = {node: place for place, nodes in enumerate(tree.walk(committed).alternatives) for node in nodes}
        for node in sorted(places.keys() - set(draft.borrowed)):
            yield draft.drafter, draft.confidences[node - 1], tree.tokens[node - 1] == committed[places[node]]


class _Map:
    """One drafter's sums: `base` as the store has them, and those of the updates since.

    The vector is: the map's weights and errors by bin, the record of the raw confidences, that of
    the calibrated ones, and the number of observations.
    """

    __slots__ = ("_calibrated", "_errors", "_observations", "_raw", "base")

    def __init__(self) -> None:
        self.base = [0.0] * SIZE
        self._reset()

    @property
    def is_changed(self) -> bool:
        return self._observations > 0

    @property
    def has_seen(self) -> bool:
        return self._observations + self.base[-1] > 0

    def values(self, confidences: Sequence[float]) -> list[float]:
        return self._errors.corrected(confidences, self.base)

    def add(self, confidence: float, accepted: bool) -> None:
        self._calibrated.add(self.values((confidence,))[0], accepted)
        self._raw.add(confidence, accepted)
        self._errors.add(confidence, accepted)
        self._observations += 1

    def take(self) -> Change:
        """Take (kept, added) of all sums since the last call; they become part of the base."""
        raw, calibrated = self._raw.change(), self._calibrated.change()
        kept = [*self._errors.kept * 2, *raw[0], *calibrated[0], 1.0]
        added = [*self._errors.weight, *self._errors.error, *raw[1], *calibrated[1], float(self._observations)]
        self.base = [b * k + a for b, k, a in zip(self.base, kept, added, strict=True)]
        self._reset()
        return kept, added

    def report(self) -> CalibrationReport:
        errors, record = 2 * BINS, 3 * BINS
        raw, calibrated = self.base[errors : errors + record], self.base[errors + record : errors + 2 * record]
        acceptance, raw_error = self._raw.judged(raw)
        return CalibrationReport(
            observations=round(self._observations + self.base[-1]),
            acceptance=acceptance,
            raw_error=raw_error,
            calibrated_error=self._calibrated.judged(calibrated)[1],
        )

    def _reset(self) -> None:
        self._errors, self._raw, self._calibrated, self._observations = _Errors(), _Record(), _Record(), 0


@dataclass(slots=True)
class _Errors:
    """The sums of a drafter's map since its base.

    By bin: the weight of its observations, the sum of (truth - confidence), and the share of the
    base that is left.
    """

    weight: list[float] = field(default_factory=lambda: [0.0] * BINS)
    error: list[float] = field(default_factory=lambda: [0.0] * BINS)
    kept: list[float] = field(default_factory=lambda: [1.0] * BINS)

    def add(self, confidence: float, accepted: bool) -> None:
        low, share = _bin_below(confidence)
        for i, part in ((low, 1.0 - share), (low + 1, share)):
            kept = 1.0 - (1.0 - DECAY) * part
            self.kept[i] *= kept
            self.weight[i] = self.weight[i] * kept + part
            self.error[i] = self.error[i] * kept + part * (accepted - confidence)

    def corrected(self, confidences: Sequence[float], base: Sequence[float]) -> list[float]:
        """Return these confidences plus the truth's excess over them, shrunk to 0; within the bounds.

        `base`: weights, then errors.
        """
        kept, weight, error = self.kept, self.weight, self.error
        found = []
        for confidence in confidences:
            place = confidence * BINS - 0.5  # as in `_bin_below`, without a call: this is asked for every node
            place = BINS - 1.0 if place >= BINS - 1.0 else place if place > 0.0 else 0.0
            low = BINS - 2 if place >= BINS - 1.0 else int(place)
            share = place - low
            left = kept[low]
            below = (
                (1.0 - share) * (base[BINS + low] * left + error[low]) / (base[low] * left + weight[low] + PRIOR_WEIGHT)
            )
            high = low + 1
            left = kept[high]
            above = share * (base[BINS + high] * left + error[high])
            value = confidence + (below + above / (base[high] * left + weight[high] + PRIOR_WEIGHT))
            found.append(_CEILING if value >= _CEILING else value if value > FLOOR else FLOOR)
        return found


@dataclass(slots=True)
class _Record:
    """The sums for a report since the base: weight, predictions and truth by bin of the prediction.

    The newest weigh most: instead of decaying all that came before, `unit` grows, and the share of
    the base that is left is `kept` / `unit`.
    """

    unit: float = 1.0
    kept: float = 1.0
    sums: list[float] = field(default_factory=lambda: [0.0] * 3 * BINS)

    def add(self, prediction: float, accepted: bool) -> None:
        i = min(BINS - 1, int(prediction * BINS))
        self.unit *= REPORT_GROWTH
        self.sums[i] += self.unit
        self.sums[BINS + i] += self.unit * prediction
        self.sums[2 * BINS + i] += self.unit * accepted
        if self.unit > 1e9:  # long before a float is full
            self.sums = [value / self.unit for value in self.sums]
            self.kept, self.unit = self.kept / self.unit, 1.0

    def change(self) -> Change:
        return [self.kept / self.unit] * 3 * BINS, [value / self.unit for value in self.sums]

    def judged(self, base: Sequence[float]) -> tuple[float, float]:
        """Return the share of right tokens, and the expected calibration error.

        That is the bins' |truth - prediction|, weighted by their observations.
        """
        kept = self.kept / self.unit
        sums = [b * kept + value / self.unit for b, value in zip(base, self.sums, strict=True)]
        weight, predicted, accepted = sums[:BINS], sums[BINS : 2 * BINS], sums[2 * BINS :]
        off = sum(abs(a - p) for a, p in zip(accepted, predicted, strict=True))
        total = sum(weight) or 1.0
        return sum(accepted) / total, off / total


def _bounded(confidence: float) -> float:
    return _CEILING if confidence >= _CEILING else confidence if confidence > FLOOR else FLOOR


def _bin_below(confidence: float) -> tuple[int, float]:
    """Return the bin whose centre is the last below the confidence, and the share in it of the bin above."""
    place = confidence * BINS - 0.5  # centres are whole numbers here
    place = BINS - 1.0 if place >= BINS - 1.0 else place if place > 0.0 else 0.0
    low = BINS - 2 if place >= BINS - 1.0 else int(place)
    return low, place - low

"""What a drafter's confidence is worth: a map from what it said to how often it was right.

Per drafter ten bins of confidence; each keeps, with exponential forgetting, how far the truth lay above what
was said. The calibrated value is the confidence plus that error, interpolated between the bins' centres and
pulled to the confidence itself (identity) while there is little evidence. Not thread-safe; cheap enough for
every node.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from app.messages import Draft

BINS = 10
PRIOR_WEIGHT = 8.0  # observations the identity counts for in a bin
DECAY = 0.995  # of a bin's past at each new observation in it: a memory of about 200
REPORT_GROWTH = 1.001  # of an observation's weight in a report: a memory of about 1000 over all bins
FLOOR = 0.001  # nothing is certain: calibrated values lie in [FLOOR, 1 - FLOOR]
MAX_DRAFTERS = 256  # names come off the wire; beyond this new ones stay uncalibrated


@dataclass(frozen=True, slots=True)
class CalibrationReport:
    """One drafter's record, recent observations weighing most. Errors are expected calibration errors."""

    observations: int
    acceptance: float
    raw_error: float
    calibrated_error: float  # of the value given before each verdict was known


class Calibration:
    """Calibrated confidence per drafter. An unknown drafter is taken at its word."""

    def __init__(self) -> None:
        self._errors: dict[str, _Errors] = {}
        self._raw: dict[str, _Record] = {}
        self._calibrated: dict[str, _Record] = {}
        self._observations: dict[str, int] = {}

    def value(self, drafter: str, confidence: float) -> float:
        """The probability that a token said with `confidence` is right, given that its parent is."""
        errors = self._errors.get(drafter)
        if errors is not None:
            confidence += errors.shift(confidence)
        return min(1.0 - FLOOR, max(FLOOR, confidence))

    def observe(self, drafter: str, confidence: float, accepted: bool) -> None:
        """A token said with `confidence` below a right parent turned out right or wrong."""
        is_new = drafter not in self._errors
        if not 0.0 <= confidence <= 1.0 or (is_new and len(self._errors) >= MAX_DRAFTERS):
            return
        self._calibrated.setdefault(drafter, _Record()).add(self.value(drafter, confidence), accepted)
        self._raw.setdefault(drafter, _Record()).add(confidence, accepted)
        self._errors.setdefault(drafter, _Errors()).add(confidence, accepted)
        self._observations[drafter] = self._observations.get(drafter, 0) + 1

    def learn(self, drafts: Iterable[Draft], committed: Sequence[int]) -> None:
        """Observe everything that `committed`, the tokens after the drafts' base, says about them."""
        for drafter, confidence, accepted in judge(drafts, committed):
            self.observe(drafter, confidence, accepted)

    def report(self) -> dict[str, CalibrationReport]:
        """How well each drafter knows itself, before and after calibration."""
        return {
            drafter: CalibrationReport(
                observations=self._observations[drafter],
                acceptance=raw.acceptance(),
                raw_error=raw.calibration_error(),
                calibrated_error=self._calibrated[drafter].calibration_error(),
            )
            for drafter, raw in self._raw.items()
        }


def judge(drafts: Iterable[Draft], committed: Sequence[int]) -> Iterator[tuple[str, float, bool]]:
    """(drafter, confidence, accepted) of each node whose parent was right and whose own place is committed by
    now.

    `committed` are the tokens after the drafts' base, in later rounds too: nodes that were never verified
    count as well. Malformed drafts yield what can be judged before their first fault.
    """
    for draft in drafts:
        depths: list[int | None] = [0]  # of the nodes that were right
        borrowed = set(draft.borrowed)
        nodes = zip(draft.tokens, draft.parents, draft.confidences, strict=False)
        for i, (token, parent, confidence) in enumerate(nodes):
            if not 0 <= parent <= i:
                break
            depth = depths[parent]
            is_known = depth is not None and depth < len(committed)
            accepted = is_known and depth is not None and committed[depth] == token
            depths.append(depth + 1 if accepted and depth is not None else None)
            if is_known and i + 1 not in borrowed:
                yield draft.drafter, confidence, accepted


@dataclass(slots=True)
class _Errors:
    """One drafter's map: per bin the weight of its observations and the sum of (truth - confidence)."""

    weight: list[float] = field(default_factory=lambda: [0.0] * BINS)
    error: list[float] = field(default_factory=lambda: [0.0] * BINS)

    def add(self, confidence: float, accepted: bool) -> None:
        for i, part in _bins_near(confidence):
            kept = 1.0 - (1.0 - DECAY) * part
            self.weight[i] = self.weight[i] * kept + part
            self.error[i] = self.error[i] * kept + part * (accepted - confidence)

    def shift(self, confidence: float) -> float:
        """How far the truth lies above this confidence, shrunk towards 0."""
        return sum(part * self.error[i] / (self.weight[i] + PRIOR_WEIGHT) for i, part in _bins_near(confidence))


@dataclass(slots=True)
class _Record:
    """For the report: weight, predictions and truth by bin of the prediction. The newest weigh most."""

    unit: float = 1.0
    weight: list[float] = field(default_factory=lambda: [0.0] * BINS)
    predicted: list[float] = field(default_factory=lambda: [0.0] * BINS)
    accepted: list[float] = field(default_factory=lambda: [0.0] * BINS)

    def add(self, prediction: float, accepted: bool) -> None:
        i = min(BINS - 1, int(prediction * BINS))
        self.unit *= REPORT_GROWTH
        self.weight[i] += self.unit
        self.predicted[i] += self.unit * prediction
        self.accepted[i] += self.unit * accepted
        if self.unit > 1e9:  # long before a float is full
            for sums in (self.weight, self.predicted, self.accepted):
                sums[:] = [value / self.unit for value in sums]
            self.unit = 1.0

    def acceptance(self) -> float:
        return sum(self.accepted) / sum(self.weight)

    def calibration_error(self) -> float:
        """Expected calibration error: the bins' |truth - prediction|, by weight."""
        off = sum(abs(a - p) for a, p in zip(self.accepted, self.predicted, strict=True))
        return off / sum(self.weight)


def _bins_near(confidence: float) -> tuple[tuple[int, float], tuple[int, float]]:
    """The two bins whose centres enclose the confidence, each with its share in it."""
    place = min(BINS - 1.0, max(0.0, confidence * BINS - 0.5))  # centres are whole numbers here
    low = min(BINS - 2, int(place))
    return (low, 1.0 - (place - low)), (low + 1, place - low)

"""Calibrate drafters: map the confidence that one gives to the share of its tokens that are right.

Confidences and committed tokens go in, chances come out (`kernels.host.confidence_sums` has the formula).
All of it is decaying sums, so that several fusers learn one map together and a restarted one goes
on from it (`app.store.shared_stats`): beside the stored part, each sum keeps what was added since
and the share of the stored part that is left. One thread updates; another may call `changes` and
`absorb`.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from app.messages import Draft
from app.state import Change
from kernels.host.confidence_sums import (
    BINS,
    CALIBRATED,
    KEPT,
    NO_GUESS,
    OBSERVED,
    RAW,
    SIZE,
    UNKNOWN,
    WEIGHT,
    JudgedDrafts,
    calibrated,
    fresh_sums,
    learn,
)

GROUP = "calibration"  # of the store's sums
MAX_DRAFTERS = 256  # names come from drafts, which are not trusted; beyond this new ones stay uncalibrated
Judged = tuple[Iterable[Draft], Sequence[int]]  # drafts of one sequence, and the tokens committed after their base


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
        self.sums = fresh_sums(4)  # a row each drafter, as the kernels read them
        self._rows: dict[str, int] = {}
        self._lock = threading.Lock()

    def row(self, drafter: str) -> int:
        """Return the drafter's row of `sums`, by which its confidence is corrected."""
        return self._rows.get(drafter, UNKNOWN)

    def value(self, drafter: str, confidence: float) -> float:
        """Return the chance that a token with this confidence is right if its parent is."""
        return calibrated(self.sums, self.row(drafter), confidence)

    def update(self, drafter: str, confidence: float, accepted: bool) -> None:
        """Learn that a token with this confidence, below a right parent, was right or wrong."""
        draft = Draft(request_id="", base=0, drafter=drafter, tokens=(1,), parents=(0,), confidences=(confidence,))
        self.update_from_drafts([draft], [int(accepted)])

    def update_from_drafts(self, drafts: Iterable[Draft], committed: Sequence[int]) -> None:
        """Learn from every node that `committed`, the tokens after the drafts' base, can judge."""
        self.update_from_batch([(drafts, committed)])

    def update_from_batch(self, judged: Iterable[Judged]) -> None:
        """Learn from the drafts of several sequences.

        `committed` may be of later rounds too: nodes that were never verified count as well.
        """
        tokens: list[int] = []
        parents: list[int] = []
        confidences: list[float] = []
        ends: list[int] = []
        names: list[str] = []
        texts: list[int] = []  # of each draft, the place of its text
        committed: list[int] = []
        text_ends: list[int] = []
        for drafts, text in judged:
            for draft in drafts:
                size = min(len(draft.tokens), len(draft.parents), len(draft.confidences))
                tokens += draft.tokens[:size]
                parents += draft.parents[:size]
                confidences += _own_confidences(draft, size) if draft.borrowed else draft.confidences[:size]
                ends.append(len(tokens))
                names.append(draft.drafter)
                texts.append(len(text_ends))
            committed += text
            text_ends.append(len(committed))
        if not tokens:
            return
        with self._lock:
            given = JudgedDrafts(
                _integers([tokens, parents]),
                np.array(confidences, np.float64),
                np.array([ends, [*map(self._row_of, names)], texts]),
                np.array(committed, np.int64),
                np.array(text_ends),
            )
            learn(given, self.sums)

    def report(self) -> dict[str, CalibrationReport]:
        """Report each drafter's acceptance, and its errors before and after calibration."""
        with self._lock:
            return {
                drafter: _report(sums)
                for drafter, sums in self._lists().items()
                if sums[OBSERVED] + sums[SIZE - 1] > 0.0
            }

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
            return {drafter: self._take(drafter, sums) for drafter, sums in self._lists().items() if sums[OBSERVED]}

    def absorb(self, group: str, sums: Mapping[str, Sequence[float]]) -> None:
        """Take over the drafters' sums as the store has them (see `SharedStats`)."""
        with self._lock:
            for drafter, vector in sums.items():
                row = self._row_of(drafter) if len(vector) == SIZE else UNKNOWN
                if row != UNKNOWN:
                    self.sums[row, :SIZE] = vector

    def _row_of(self, drafter: str) -> int:
        """Return a drafter's row, a new one for a new drafter; UNKNOWN where there are too many."""
        row = self._rows.get(drafter, UNKNOWN)
        if row == UNKNOWN and len(self._rows) < MAX_DRAFTERS:
            row = self._rows[drafter] = len(self._rows) + 1
            if row == len(self.sums):
                self.sums = np.concatenate([self.sums, fresh_sums(row)])
        return row

    def _lists(self) -> dict[str, list[float]]:
        """Return each drafter's sums."""
        listed = self.sums.tolist()
        return {drafter: listed[row] for drafter, row in self._rows.items()}

    def _take(self, drafter: str, sums: list[float]) -> Change:
        """Take (kept, added) of all sums since the last call; they become part of the base."""
        raw, calibrated = _record_change(sums[RAW:CALIBRATED]), _record_change(sums[CALIBRATED:OBSERVED])
        kept = [*sums[KEPT:WEIGHT] * 2, *raw[0], *calibrated[0], 1.0]
        added = [*sums[WEIGHT:RAW], *raw[1], *calibrated[1], sums[OBSERVED]]
        fresh = fresh_sums(1)
        fresh[0, :SIZE] = [b * k + a for b, k, a in zip(sums[:SIZE], kept, added, strict=True)]
        self.sums[self._rows[drafter]] = fresh[0]
        return kept, added


class RawConfidence(Calibration):
    """A calibration that learns, for its reports, and takes every drafter's confidence as it is."""

    def row(self, drafter: str) -> int:
        """Return the row by which confidences are kept, away from 0 and 1."""
        return UNKNOWN


def _own_confidences(draft: Draft, size: int) -> list[float]:
    """Return the confidences in a draft's first nodes; NO_GUESS of those that are borrowed."""
    confidences = [*draft.confidences[:size]]
    for node in draft.borrowed:
        if 1 <= node <= size:
            confidences[node - 1] = NO_GUESS
    return confidences


def _integers(rows: list[list[int]]) -> np.ndarray:
    """Return numbers as an array; -1, which is no token and no parent, for those off the wire that do not fit."""
    try:
        return np.array(rows, np.int64)
    except OverflowError:
        return np.array([[value if abs(value) < 2**63 else -1 for value in row] for row in rows], np.int64)


def _record_change(record: list[float]) -> Change:
    """Return (kept, added) of a record's sums since its base."""
    unit, kept, *sums = record
    return [kept / unit] * len(sums), [value / unit for value in sums]


def _report(sums: list[float]) -> CalibrationReport:
    """Report on a drafter by its sums."""
    first = 2 * BINS
    acceptance, raw_error = _judged(sums[RAW:CALIBRATED], sums[first:])
    return CalibrationReport(
        observations=round(sums[OBSERVED] + sums[SIZE - 1]),
        acceptance=acceptance,
        raw_error=raw_error,
        calibrated_error=_judged(sums[CALIBRATED:OBSERVED], sums[first + 3 * BINS :])[1],
    )


def _judged(record: list[float], base: Sequence[float]) -> tuple[float, float]:
    """Return a record's share of right tokens, and its expected calibration error.

    That is the bins' |truth - prediction|, weighted by their observations.
    """
    kept, added = _record_change(record)
    sums = [b * k + a for b, k, a in zip(base, kept, added, strict=False)]
    weight, predicted, accepted = sums[:BINS], sums[BINS : 2 * BINS], sums[2 * BINS :]
    off = sum(abs(a - p) for a, p in zip(accepted, predicted, strict=True))
    total = sum(weight) or 1.0
    return sum(accepted) / total, off / total

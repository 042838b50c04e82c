"""Estimate the seconds of a target step by its packed rows and their contexts.

The measurement at start is scaled by slowly corrected ratios, one set for each split of the machine. For one thread.
"""

import json
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final, NamedTuple, Self

from app.mean_error import MeanError

DECAY = 0.9  # of the past at a new observation
MAX_RATIO = 8.0  # largest drift of the machine's pace from the measurement, either way
SHAPE = 40.0  # steps that the belief counts for that steps of all sizes slow down alike
ROUGH_SHAPE = 4.0  # the same where they were timed beside other work, which slows steps of many rows down most
TABLE_ROWS = 2048  # rows looked up; beyond them computed


class Reading(NamedTuple):
    """The seconds to read a cached token: once a sequence (`token_s`), and for each row (`row_token_s`).

    A GPU reads contexts side by side, in the seconds of the longest or, if more, `share` of `token_s` for each token of
    all. On a CPU `share` is 1.
    """

    token_s: float = 0.0
    row_token_s: float = 0.0
    share: float = 1.0

    def seconds(self, context: int, rows: int) -> float:
        return context * (self.token_s + rows * self.row_token_s)

    def scaled(self, by: float) -> Self:
        return self._replace(token_s=self.token_s * by, row_token_s=self.row_token_s * by)

    def step_s(self, contexts: Iterable[tuple[int, float]]) -> float:
        if not (self.token_s or self.row_token_s):
            return 0.0
        longest, tokens, row_tokens = 0, 0, 0.0
        for context, rows in contexts:
            longest = max(longest, context)
            tokens += context
            row_tokens += context * rows
        return self.token_s * max(longest, self.share * tokens) + self.row_token_s * row_tokens


NO_READING = Reading()


@dataclass(slots=True)
class _Pace:
    ratio: float = 1.0
    row_ratio: float = 1.0
    reading_ratio: float = 1.0
    last_s: float = 0.0  # of the last step
    seen: list[float] | None = None  # decayed sums of `_fit`, from the first step on


class StepCosts:
    """Interpolate between the measured points, never falling. Raises ValueError for invalid points or readings."""

    def __init__(
        self,
        points: Mapping[int, float],
        ratio: float = 1.0,
        reading: Reading = NO_READING,
        reading_ratio: float = 1.0,
        row_ratio: float = 1.0,
        logits_s: float = 0.0,
        is_rough: bool = False,
    ) -> None:
        """`points`: seconds by rows with logits; `logits_s`: their part of a row; `is_rough`: see ROUGH_SHAPE."""
        if not points or min(points) < 1 or not all(0.0 < seconds < float("inf") for seconds in points.values()):
            raise ValueError("a cost table needs measured points: rows >= 1, seconds > 0")
        if not all(0.0 <= seconds < float("inf") for seconds in reading) or reading.share > 1.0:
            raise ValueError("reading cost must be >= 0, and its share <= 1")
        if not 0.0 <= logits_s < float("inf"):
            raise ValueError("logits cost must be >= 0")
        rows = sorted(points)
        self._points = tuple(zip(rows, _never_falling([points[n] for n in rows]), strict=True))
        self._table = [self._measured(n) for n in range(TABLE_ROWS)]
        self._row_s = self._measured(1)
        self.error: Final = MeanError()  # of the steps that `correct` saw
        self._pace = _Pace(ratio, row_ratio, reading_ratio)
        self._split = 0
        self._paces = {0: self._pace}  # by split
        self._slowdowns: dict[int, float] = {}  # by split, before any step under it
        self._reading = reading
        self._logits_s = logits_s
        self.is_rough = is_rough

    @property
    def ratio(self) -> float:
        return self._pace.ratio

    @ratio.setter
    def ratio(self, ratio: float) -> None:
        self._pace.ratio = ratio

    @property
    def row_ratio(self) -> float:
        return self._pace.row_ratio

    @property
    def last_s(self) -> float:
        return self._pace.last_s

    @property
    def reading_ratio(self) -> float:
        return self._pace.reading_ratio

    def expect(self, split: int, slowdown: float) -> None:
        """Assume `slowdown` times split 0's seconds until a step is seen."""
        self._slowdowns[split] = slowdown

    def use(self, split: int) -> None:
        self._split, self._pace = split, self._pace_of(split)

    @property
    def split(self) -> int:
        return self._split

    def at(self, split: int) -> Self:
        """State is shared."""
        found = copy(self)
        found.use(split)
        return found

    @property
    def reading(self) -> Reading:
        return self._reading.scaled(self.ratio * self.reading_ratio)

    @property
    def logits_s(self) -> float:
        return self._line()[1] * self._logits_s

    def seconds(self, rows: int, silent: int = 0) -> float:
        """Leave out contexts; `silent` rows have no logits."""
        base_s, scale = self._line()
        return base_s + scale * (self._silenced(rows, silent) if silent else self._looked_up(rows))

    def prompt_s(self, tokens: int) -> float:
        return self.seconds(tokens, tokens - 1)

    def span(self, rows: int, count: int) -> list[float]:
        if rows + count <= len(self._table):
            base_s, scale = self._line()
            return [base_s + scale * measured for measured in self._table[rows : rows + count]]
        return [self.seconds(n) for n in range(rows, rows + count)]

    def correct(self, rows: int, measured_s: float, reading_s: float = 0.0, silent: int = 0) -> None:
        """Learn from a step that took `measured_s`, of which `reading_s` was expected for contexts.

        Rows and reading share the difference by their expected parts; one outlier moves little.
        """
        if not 0.0 < measured_s < float("inf"):
            return
        self._pace.last_s = measured_s
        rows_s = self.seconds(rows, silent)
        expected_s = rows_s + reading_s
        self.error.update(expected_s, measured_s)
        seen = min(2.0, max(0.5, measured_s / expected_s)) - 1.0
        share = reading_s / expected_s
        self._fit(self._silenced(rows, silent), rows_s, seen * (1.0 - share))
        self._pace.reading_ratio = _bounded(self.reading_ratio * (1.0 + (1.0 - DECAY) * seen * share))

    def take_over(self, measured: Self) -> None:
        """Replace the measurement, and what was learned since."""
        self._points, self._table, self._row_s = measured._points, measured._table, measured._row_s
        self._reading, self._logits_s, self.is_rough = measured._reading, measured._logits_s, measured.is_rough
        self._paces = {0: _Pace()}
        self.use(self._split)

    def dumps(self) -> str:
        return json.dumps(
            {
                "points": self._points,
                "ratio": self.ratio,
                "reading": self._reading,
                "reading_ratio": self.reading_ratio,
                "row_ratio": self.row_ratio,
                "logits_s": self._logits_s,
                "is_rough": self.is_rough,
            }
        )

    @classmethod
    def loads(cls, text: str, slowdown: float = 1.0) -> Self:
        data = json.loads(text)
        return cls(
            {int(rows): float(seconds) * slowdown for rows, seconds in data["points"]},
            float(data["ratio"]),
            Reading(*map(float, data.get("reading", NO_READING))).scaled(slowdown),
            float(data.get("reading_ratio", 1.0)),
            float(data.get("row_ratio", 1.0)),
            float(data.get("logits_s", 0.0)) * slowdown,
            bool(data.get("is_rough", False)),
        )

    def _fit(self, measured_s: float, expected_s: float, seen: float) -> None:
        """Fit the first row's ratio and the others' to a step that took (1 + seen) times the expected.

        Least squares of the relative error, with forgetting; if undetermined, both change together.
        """
        pace = self._pace
        if pace.seen is None:
            few = 0.5 / (1.0 - DECAY)  # as if there had been steps of one row at the measured pace
            pace.seen = [few / self.ratio**2, 0.0, 0.0, few / self.ratio, 0.0]
        first = self._row_s / expected_s
        others = (measured_s - self._row_s) / expected_s
        new = (first * first, first * others, others * others, first * (1.0 + seen), others * (1.0 + seen))
        pace.seen = [DECAY * old + value for old, value in zip(pace.seen, new, strict=True)]
        ff, fo, oo, fy, oy = pace.seen
        shape = (ROUGH_SHAPE if self.is_rough else SHAPE) * first**2  # in the units of the sums
        ff, fo, oo = ff + shape * self.row_ratio**2, fo - shape * self.row_ratio, oo + shape
        whole = ff * oo - fo * fo
        ratio, slope = (fy * oo - oy * fo) / whole, (oy * ff - fy * fo) / whole
        pace.ratio = _bounded(ratio)
        pace.row_ratio = _bounded(slope / pace.ratio)

    def _pace_of(self, split: int) -> _Pace:
        pace, first = self._paces.setdefault(split, _Pace()), self._paces[0]
        if pace is not first and pace.seen is None:
            pace.ratio = _bounded(first.ratio * self._slowdowns.get(split, 1.0))
            pace.row_ratio, pace.reading_ratio = first.row_ratio, first.reading_ratio
        return pace

    def _line(self) -> tuple[float, float]:
        pace = self._pace
        scale = pace.ratio * pace.row_ratio
        return self._row_s * (pace.ratio - scale), scale

    def _silenced(self, rows: int, silent: int) -> float:
        return max(self._row_s, self._looked_up(rows) - silent * self._logits_s)

    def _looked_up(self, rows: int) -> float:
        return self._table[rows] if rows < len(self._table) else self._measured(rows)

    def _measured(self, rows: int) -> float:
        first_rows, first_s = self._points[0]
        if rows <= first_rows or len(self._points) == 1:
            return first_s * max(1.0, rows / first_rows)
        segments = pairwise(self._points)
        (low, low_s), (high, high_s) = next(
            (segment for segment in segments if rows <= segment[1][0]), self._points[-2:]
        )
        return low_s + (high_s - low_s) * (rows - low) / (high - low)  # beyond the last point: its last slope


def _bounded(ratio: float) -> float:
    return min(MAX_RATIO, max(1.0 / MAX_RATIO, ratio))


def _never_falling(seconds: list[float]) -> list[float]:
    """Lower the points above a later one, which were disturbed."""
    return list(accumulate(reversed(seconds), min))[::-1]

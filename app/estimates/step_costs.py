"""What things cost in seconds: a verifier step by its packed rows and their contexts, a drafter's answer by batch and
depth.

`CostTable` is a frozen measurement, made at start, times slowly corrected ratios. `DraftCosts` is learnt
online.
"""

import json
from collections import deque
from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import NamedTuple, Self

DECAY = 0.9  # of the past at a new observation
MAX_RATIO = 8.0  # the machine's pace may drift this far from the measurement, either way
SHAPE = 40.0  # steps for which it is believed that those of all sizes change alike, whatever they say
TABLE_ROWS = 2048  # looked up up to here, computed beyond
MAX_JUMP = 3.0  # an observation counts for at most so many times what was expected; one so much less starts afresh
HOPED_HOP = 0.5  # of what drafting takes at the depths that were tried
FAINT = 0.1  # an observation's weight that gives way to any real one
FEW_UNREAD = 16  # tokens of a sequence that a drafter reads along with its first guess
DEFAULT_HOP_S = 0.001  # a job's way to a drafter and back before anything is measured


class Reading(NamedTuple):
    """Seconds that attention takes for reading what is cached: of each cached token for a sequence that is in the step
    at all, and of each for every one of the sequence's rows."""

    token_s: float = 0.0
    row_token_s: float = 0.0

    def seconds(self, context: int, rows: int) -> float:
        """For `rows` rows of one sequence that has `context` cached tokens."""
        return context * (self.token_s + rows * self.row_token_s)


NO_READING = Reading()


class CostTable:
    """Seconds of one target step by packed rows: lines between the measured points, never falling; and what reading the
    rows' contexts adds to that (`reading`).

    Measure on both sides of a step of the hardware (one row to two, a CUDA-graph tier) and it stays a step.
    """

    def __init__(
        self,
        points: Mapping[int, float],
        ratio: float = 1.0,
        fork_s: float = 0.0,
        reading: Reading = NO_READING,
        reading_ratio: float = 1.0,
        row_ratio: float = 1.0,
    ) -> None:
        if not points or min(points) < 1 or not all(0.0 < seconds < float("inf") for seconds in points.values()):
            raise ValueError("a cost table needs measured points: rows >= 1, seconds > 0")
        if not all(0.0 <= seconds < float("inf") for seconds in reading):
            raise ValueError("reading takes no less than no time")
        rows = sorted(points)
        self._points = tuple(zip(rows, _never_falling([points[n] for n in rows]), strict=True))
        self._table = [self._measured(n) for n in range(TABLE_ROWS)]
        self._row_s = self._measured(1)
        self.ratio = ratio  # present pace / measured pace, of a step of one row
        self.row_ratio = row_ratio  # of what further rows add, beside `ratio`
        self.reading_ratio = reading_ratio  # of reading contexts, beside `ratio`
        self._seen: list[float] | None = None  # decayed sums of `_fit`, from the first step on
        self._fork_s = fork_s
        self._reading = reading

    @property
    def fork_s(self) -> float:
        """What a side branch of a tree costs beside its rows."""
        return self._fork_s * self.ratio

    @property
    def reading(self) -> Reading:
        """What contexts cost at the present pace."""
        scale = self.ratio * self.reading_ratio
        return Reading(self._reading.token_s * scale, self._reading.row_token_s * scale)

    def seconds(self, rows: int) -> float:
        """What a step of so many rows takes at the present pace, beside reading their contexts."""
        base_s, scale = self._line()
        return base_s + scale * self._looked_up(rows)

    def span(self, rows: int, count: int) -> list[float]:
        """`seconds` of rows, rows + 1, ... as a list of `count`: what a search reads."""
        if rows + count <= len(self._table):
            base_s, scale = self._line()
            return [base_s + scale * measured for measured in self._table[rows : rows + count]]
        return [self.seconds(n) for n in range(rows, rows + count)]

    def correct(self, rows: int, measured_s: float, reading_s: float = 0.0) -> None:
        """Follow the machine: a step of so many rows took `measured_s`, `reading_s` of which was expected for reading.

        One outlier moves little. What was not expected is laid at the door of rows and reading by their parts.
        """
        if not 0.0 < measured_s < float("inf"):
            return
        rows_s = self.seconds(rows)
        expected_s = rows_s + reading_s
        seen = min(2.0, max(0.5, measured_s / expected_s)) - 1.0
        share = reading_s / expected_s
        self._fit(rows, rows_s, seen * (1.0 - share))
        self.reading_ratio = _bounded(self.reading_ratio * (1.0 + (1.0 - DECAY) * seen * share))

    def dumps(self) -> str:
        """The measurement and the present ratios as JSON."""
        return json.dumps(
            {
                "points": self._points,
                "ratio": self.ratio,
                "fork_s": self._fork_s,
                "reading": self._reading,
                "reading_ratio": self.reading_ratio,
                "row_ratio": self.row_ratio,
            }
        )

    @classmethod
    def loads(cls, text: str, slowdown: float = 1.0) -> Self:
        """Inverse of `dumps`; a table written before contexts were measured has none. `slowdown`: of all of it."""
        data = json.loads(text)
        return cls(
            {int(rows): float(seconds) * slowdown for rows, seconds in data["points"]},
            float(data["ratio"]),
            float(data.get("fork_s", 0.0)) * slowdown,
            Reading(*(float(seconds) * slowdown for seconds in data.get("reading", NO_READING))),
            float(data.get("reading_ratio", 1.0)),
            float(data.get("row_ratio", 1.0)),
        )

    def _fit(self, rows: int, expected_s: float, seen: float) -> None:
        """A step's rows took (1 + seen) times as long as expected: what does the first take, and what do others add?

        Least squares of the relative error over the last steps, with forgetting; and a busy machine slows steps of all
        sizes alike, so where those steps do not tell, both change together.
        """
        if self._seen is None:
            few = 0.5 / (1.0 - DECAY)  # as if there had been steps of one row at the measured pace
            self._seen = [few / self.ratio**2, 0.0, 0.0, few / self.ratio, 0.0]
        first = self._row_s / expected_s
        others = (self._looked_up(rows) - self._row_s) / expected_s
        new = (first * first, first * others, others * others, first * (1.0 + seen), others * (1.0 + seen))
        self._seen = [DECAY * old + value for old, value in zip(self._seen, new, strict=True)]
        ff, fo, oo, fy, oy = self._seen
        shape = SHAPE * first**2  # in the units of the sums
        ff, fo, oo = ff + shape * self.row_ratio**2, fo - shape * self.row_ratio, oo + shape
        whole = ff * oo - fo * fo
        ratio, slope = (fy * oo - oy * fo) / whole, (oy * ff - fy * fo) / whole
        self.ratio = _bounded(ratio)
        self.row_ratio = _bounded(slope / self.ratio)

    def _line(self) -> tuple[float, float]:
        """What to multiply measured seconds by, and what to add to that, for those at the present pace."""
        scale = self.ratio * self.row_ratio
        return self._row_s * (self.ratio - scale), scale

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
    """More rows never take less: a point above a later one was disturbed while it was measured."""
    return list(accumulate(reversed(seconds), min))[::-1]


class DraftCosts:
    """Seconds from asking for drafts to having them, learnt from what it took: hop + depth x step(batch) + reading.

    One weighted least-squares line over depth for each power of two of the batch, with forgetting. Knows
    nothing at first and then says the hop alone: asking is how it learns. Rounds in which drafters had much to read
    say nothing about the line; what they took beyond it is the price of reading.
    """

    def __init__(self, hop_s: float = DEFAULT_HOP_S) -> None:
        self._hop_s = hop_s
        self._lines: dict[int, list[float]] = {}  # batch size class -> sums of 1, d, d*d, t, d*t
        self._reading_s = deque[float](maxlen=8)  # a token's, as last seen; the least counts

    def observe(self, batch: int, depth: int, seconds: float, unread: int = 0) -> None:
        """Asked for `depth` tokens of `batch` sequences at once, a drafter answered after `seconds`, in which it
        also had to read `unread` tokens that it had not seen."""
        if batch < 1 or depth < 1 or not 0.0 <= seconds < float("inf"):
            return
        if unread > FEW_UNREAD * batch:
            if self._lines:
                self._reading_s.append(max(0.0, seconds - self.seconds(batch, depth)) / unread)
            return
        if batch.bit_length() in self._lines:  # one frozen process must not end all asking: a high price is doubted
            expected = self.seconds(batch, depth)
            if seconds * MAX_JUMP < expected:
                del self._lines[batch.bit_length()]
            seconds = min(seconds, MAX_JUMP * expected)
        sums = self._lines.setdefault(batch.bit_length(), [0.0] * 5)
        for i, value in enumerate((1.0, depth, depth * depth, seconds, depth * seconds)):
            sums[i] = sums[i] * DECAY + value

    def seconds(self, batch: int, depth: int) -> float:
        """What asking takes; 0 for nothing asked. An unmeasured batch costs what the nearest does."""
        if batch < 1 or depth < 1:
            return 0.0
        if not self._lines:
            return self._hop_s
        size = batch.bit_length()
        hop_s, step_s = self._line(min(self._lines, key=lambda known: (abs(known - size), known)))
        return hop_s + depth * step_s

    def read_s(self, unread: int) -> float:
        """What reading so many unseen tokens takes; few are part of any draft."""
        return min(self._reading_s, default=0.0) * unread if unread > FEW_UNREAD else 0.0

    def _line(self, size: int) -> tuple[float, float]:
        """Intercept and slope, both >= 0. One depth alone would leave the line undetermined, so what half of the mean
        time would be at depth 0 is a faint observation more: hopeful, since only asking deeper can tell."""
        n, d, dd, t, dt = self._lines[size]
        n, t = n + FAINT, t + FAINT * max(self._hop_s, HOPED_HOP * t / n)
        step_s = max(0.0, (n * dt - d * t) / max(n * dd - d * d, 1e-9))
        return max(0.0, (t - step_s * d) / n), step_s

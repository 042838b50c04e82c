"""Learn the draft cost, in seconds: by batch, depth and unread tokens.

Timed rounds go in, expected seconds come out, each split of the machine its own. Knows neither
drafters nor clocks. For one thread.
"""

from collections import deque
from copy import copy
from dataclasses import dataclass, field
from typing import Self

from app.estimates.step_costs import DECAY

MAX_JUMP = 3.0  # an observation counts for at most so many times what was expected; one so much less starts afresh
HOPED_HOP = 0.5  # of the mean time of drafting at the depths that were tried
FAINT = 0.5  # weight of a guessed observation: a few real ones at other depths outweigh it
FEW_UNREAD = 16  # tokens of a sequence that a drafter reads along with its first guess
DEFAULT_HOP_S = 0.001  # a job's way to a drafter and back before anything is measured


@dataclass(slots=True)
class _Lines:
    """What rounds under one split of the machine taught, by batch size class."""

    slowdown: float = 1.0  # over split 0, before any round
    sums: dict[int, list[float]] = field(default_factory=dict)  # of 1, d, d*d, t, d*t
    fitted: dict[int, list[tuple[float, float]]] = field(default_factory=dict)  # hop and step, by either guess


class DraftCosts:
    """The seconds from sending jobs to having drafts: hop + depth x step(batch) + reading.

    One weighted least-squares line over depth for each power of two of the batch, with forgetting.
    Before any round it expects the hop alone, for only drafting teaches the rest. Rounds in which
    drafters had much to read do not count for the line; their time beyond it is the cost of
    reading.
    """

    def __init__(self, hop_s: float = DEFAULT_HOP_S) -> None:
        self._hop_s = hop_s
        self._split = 0
        self._lines = _Lines()
        self._by_split = {0: self._lines}
        self._reading_s = deque[float](maxlen=8)  # a token's, as last seen; the least counts

    @property
    def split(self) -> int:
        """Return the split of the machine whose costs these are."""
        return self._split

    @property
    def is_known(self) -> bool:
        """Tell whether any round taught what drafting takes."""
        return self._nearest() is not None

    def expect(self, split: int, slowdown: float) -> None:
        """Expect drafting under a split to take `slowdown` times that under split 0 until some is seen."""
        self._by_split.setdefault(split, _Lines()).slowdown = slowdown

    def use(self, split: int) -> None:
        """Give the costs under this split of the machine, and learn them, from now on; at first it is 0."""
        self._split, self._lines = split, self._by_split.setdefault(split, _Lines())

    def at(self, split: int) -> Self:
        """Return the costs under another split; what is learnt of it is one for both objects."""
        found = copy(self)
        found.use(split)
        return found

    def update(self, batch: int, depth: int, seconds: float, unread: int = 0) -> None:
        """Learn from a round of `depth` tokens for `batch` sequences that took `seconds`.

        `unread`: tokens that the drafter had not seen and had to read as well.
        """
        if batch < 1 or depth < 1 or not 0.0 <= seconds < float("inf"):
            return
        if unread > FEW_UNREAD * batch:
            if self._lines.fitted:
                self._reading_s.append(max(0.0, seconds - self.seconds(batch, depth)) / unread)
            return
        # A high cost is doubted: one frozen process must not end all drafting.
        if batch.bit_length() in self._lines.fitted:
            expected = self.seconds(batch, depth)
            if seconds * MAX_JUMP < expected:
                del self._lines.sums[batch.bit_length()]
            seconds = min(seconds, MAX_JUMP * expected)
        sums = self._lines.sums.setdefault(batch.bit_length(), [0.0] * 5)
        n, d, dd, t, dt = sums
        sums[:] = (
            n * DECAY + 1.0,
            d * DECAY + depth,
            dd * DECAY + depth * depth,
            t * DECAY + seconds,
            dt * DECAY + depth * seconds,
        )
        half_s = max(self._hop_s, HOPED_HOP * sums[3] / sums[0])
        self._lines.fitted[batch.bit_length()] = [_line(sums, self._hop_s), _line(sums, half_s)]

    def seconds(self, batch: int, depth: int) -> float:
        """Return the seconds of a round; 0 without draft tokens.

        An unmeasured batch costs as much as the nearest measured one, an unmeasured split as much
        as the nearest one times what is expected of their slowdowns.
        """
        if batch < 1 or depth < 1:
            return 0.0
        fitted, scale = self._lines.fitted, 1.0
        if not fitted:
            near = self._nearest()
            if near is None:
                return self._hop_s
            fitted, scale = near.fitted, self._lines.slowdown / near.slowdown
        size = batch.bit_length()
        lines = fitted.get(size) or fitted[min(fitted, key=lambda known: (abs(known - size), known))]
        return scale * min(hop_s + depth * step_s for hop_s, step_s in lines)

    def _nearest(self) -> _Lines | None:
        known = [split for split, lines in self._by_split.items() if lines.fitted]
        return self._by_split[min(known, key=lambda split: abs(split - self._split))] if known else None

    def read_s(self, unread: int) -> float:
        """Return the seconds to read so many unseen tokens; a few are part of any draft."""
        return min(self._reading_s, default=0.0) * unread if unread > FEW_UNREAD else 0.0


def _line(sums: list[float], hop_s: float) -> tuple[float, float]:
    """Fit intercept and slope to the sums, both >= 0, in seconds.

    Depths that are all alike leave it undetermined, so `hop_s` at depth 0 is one faint observation
    more. That is guessed twice, as the hop alone and as half of the mean time, and the lower result
    counts: hopeful of shorter drafts and of longer ones, since only these can tell.
    """
    n, d, dd, t, dt = sums
    n, t = n + FAINT, t + FAINT * hop_s
    step_s = max(0.0, (n * dt - d * t) / max(n * dd - d * d, 1e-9))
    return max(0.0, (t - step_s * d) / n), step_s

"""Learn the draft cost, in seconds: by batch, depth and unread tokens.

Timed rounds go in, expected seconds come out, each split of the machine its own. Knows neither
drafters nor clocks. For one thread.
"""

from collections import deque
from copy import copy
from dataclasses import dataclass, field
from typing import Self

from app.engine.step_costs import DECAY

MAX_JUMP = 3.0  # an observation counts for at most so many times what was expected; one so much less starts afresh
YOUNG = 2.5  # rounds, by weight: with fewer a lower one starts afresh, and a larger batch costs at least as much
LOWER = 0.9  # of what was expected: a lower one
HOPED_HOP = 0.5  # of the mean time of drafting at the depths that were tried
FAINT = 0.5  # weight of a guessed observation: a few real ones at other depths outweigh it
FEW_UNREAD = 16  # tokens of a sequence that a drafter reads along with its first guess
DEFAULT_HOP_S = 0.001  # a job's way to a drafter and back before anything is measured


_Sums = tuple[float, float, float, float, float]  # of 1, d, d*d, t, d*t
_Line = tuple[float, float]  # hop and step
_NOTHING: _Sums = (0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(slots=True)
class _Lines:
    """What rounds under one split of the machine taught, by batch size class."""

    slowdown: float = 1.0  # over split 0, before any round
    sums: dict[int, _Sums] = field(default_factory=dict)
    fitted: dict[int, tuple[_Line, _Line]] = field(default_factory=dict)  # by either guess

    def seconds(self, size: int, depth: int) -> float:
        """Return the seconds of a batch of this size class; some class must be measured."""
        return self.span(size, depth, depth)[0]

    def span(self, size: int, first: int, last: int) -> list[float]:
        """Return `seconds` of each depth from `first` to `last`."""
        nearest = min(self.fitted, key=lambda known: (abs(known - size), known))
        lines = [self.fitted[nearest]]
        if nearest != size or self.sums[size][0] < YOUNG:
            lines = [line for known, line in self.fitted.items() if known >= size or known == nearest]
        return [min([_least(line, depth) for line in lines]) for depth in range(first, last + 1)]


def size_class(batch: int) -> int:
    """Return the class of batch sizes that share a line: a power of two up to the next."""
    return batch.bit_length()


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

    def update(
        self,
        batch: int,
        depth: int,
        seconds: float,
        unread: int = 0,
        *,
        share: float = 1.0,
        is_beside: bool = False,
        is_bound: bool = False,
    ) -> None:
        """Learn from a round of `depth` tokens for `batch` sequences that took `seconds`.

        `share`: the part of the round that this tells of, as one sequence's answer does. `unread`: tokens that the
        drafter had not seen and had to read as well. `is_beside`: while the verifier was at work on the same cores,
        whose part of the seconds was guessed and left out. That only stands in until a round is seen that was not.
        `is_bound`: drafters did more besides, so that it counts only if it took less than expected.
        """
        if batch < 1 or depth < 1 or not 0.0 <= seconds < float("inf"):
            return
        size, lines = size_class(batch), self._lines
        if unread > FEW_UNREAD * batch:
            if lines.fitted:
                self._reading_s.append(max(0.0, seconds - self.seconds(batch, depth)) / unread)
            return
        n, d, dd, t, dt = lines.sums.get(size, _NOTHING)
        at = float(depth)
        fitted = lines.fitted.get(size)
        if is_bound and fitted is not None:
            expected = _least(fitted, depth)
            if seconds >= expected:
                return
            at = d / n  # it says how much less drafts take, and nothing of longer and shorter ones
            seconds *= _least(fitted, at) / expected
        if is_beside:
            if n >= YOUNG:
                return
            n, d, dd, t, dt = _NOTHING
        elif fitted is not None:  # a high cost is doubted: one frozen process must not end all drafting
            expected = _least(fitted, at)
            if seconds * MAX_JUMP < expected or (n < YOUNG and seconds < LOWER * expected):
                n, d, dd, t, dt = _NOTHING
            seconds = min(seconds, MAX_JUMP * expected)
        kept = DECAY**share
        n, d, dd = n * kept + share, d * kept + share * at, dd * kept + share * at * at
        t, dt = t * kept + share * seconds, dt * kept + share * at * seconds
        lines.sums[size] = sums = (n, d, dd, t, dt)
        lines.fitted[size] = _line(sums, self._hop_s), _line(sums, max(self._hop_s, HOPED_HOP * t / n))

    def seconds(self, batch: int, depth: int) -> float:
        """Return the seconds of a round; 0 without draft tokens.

        An unmeasured batch costs as much as the nearest measured one, and hardly measured ones no more than larger
        ones do. An unmeasured split costs as much as the nearest one times what is expected of their slowdowns.
        """
        if batch < 1 or depth < 1:
            return 0.0
        lines, size = self._lines, size_class(batch)
        if not lines.fitted:
            near = self._nearest()
            return self._hop_s if near is None else self._lines.slowdown / near.slowdown * near.seconds(size, depth)
        return lines.seconds(size, depth)

    def span(self, batch: int, depth: int) -> list[float]:
        """Return `seconds` of 0, 1, ... `depth` tokens, for a search."""
        if batch < 1 or not self._lines.fitted:
            return [self.seconds(batch, tokens) for tokens in range(depth + 1)]
        return [0.0, *self._lines.span(batch.bit_length(), 1, depth)]

    def added_s(self, batch: int, depth: int) -> float:
        """Return the seconds that each sequence of the larger half of a batch adds to a round.

        0 where no batch like the smaller half was seen: then it costs as much as the larger one.
        """
        half = batch // 2
        return max(0.0, self.seconds(batch, depth) - self.seconds(half, depth)) / max(1, batch - half)

    def _nearest(self) -> _Lines | None:
        known = [split for split, lines in self._by_split.items() if lines.fitted]
        return self._by_split[min(known, key=lambda split: abs(split - self._split))] if known else None

    def read_s(self, unread: int) -> float:
        """Return the seconds to read so many unseen tokens; a few are part of any draft."""
        return min(self._reading_s, default=0.0) * unread if unread > FEW_UNREAD else 0.0


def _least(lines: tuple[_Line, _Line], depth: float) -> float:
    """Return the seconds by the line that has fewer."""
    (hop_s, step_s), (other_hop_s, other_step_s) = lines
    return min(hop_s + depth * step_s, other_hop_s + depth * other_step_s)


def _line(sums: _Sums, hop_s: float) -> _Line:
    """Fit intercept and slope to the sums, both >= 0, in seconds.

    Depths that are all alike leave it undetermined, so `hop_s` at depth 0 is one faint observation
    more. That is guessed twice, as the hop alone and as half of the mean time, and the lower result
    counts: hopeful of shorter drafts and of longer ones, since only these can tell.
    """
    n, d, dd, t, dt = sums
    n, t = n + FAINT, t + FAINT * hop_s
    step_s = max(0.0, (n * dt - d * t) / max(n * dd - d * d, 1e-9))
    return max(0.0, (t - step_s * d) / n), step_s

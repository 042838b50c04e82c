"""Expect the seconds from asking for drafts to having them, by the reports of drafter nodes."""

from collections.abc import Sequence as Listed
from copy import copy
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Self

import numpy as np

from app.engine.step_costs import DECAY
from app.messages import DraftReport
from app.recent import RecentMedian

FEW_UNREAD = 16  # tokens of a sequence that a drafter reads along with its first guess
LEAST_READ = 64  # tokens that show what reading takes; fewer take as long as a guess
DEFAULT_HOP_S = 0.001  # from asking to receiving beside the drafters' own work, before anything is measured


def size_class(batch: int) -> int:
    return batch.bit_length()


class _ByDrafters:
    """Seconds by the number of drafters asked; fewer take no longer than more, and none take none.

    So fewer drafters than were ever asked look cheap enough to be tried.
    """

    def __init__(self) -> None:
        self._seen: dict[int, RecentMedian] = {}
        self._known: dict[int, float] = {}

    def add(self, drafters: int, seconds: float) -> None:
        self._seen.setdefault(drafters, RecentMedian()).add(seconds)
        self._known.clear()

    def of(self, drafters: int, default_s: float = 0.0) -> float:
        """Return the seconds, the default before any were seen."""
        if not self._seen:
            return default_s
        if drafters not in self._known:
            numbers = sorted(self._seen)
            least = np.minimum.accumulate([self._seen[n].value for n in reversed(numbers)])
            self._known[drafters] = float(np.interp(drafters, [0, *numbers], [0.0, *reversed(least)]))
        return self._known[drafters]


@dataclass(slots=True)
class _Guesses:
    slowdown: float = 1.0  # over split 0, expected before any draft
    token_s: dict[int, _ByDrafters] = field(default_factory=dict)


class DraftCosts:
    """The seconds of drafts by models: hop(drafters) + depth x part x token_s(batch, drafters) + reading.

    `token_s`: of one more token for all sequences of a batch, by size class. `part`: of the tokens asked for, those
    guessed after the job's arrival, 0 until some could be guessed ahead. `drafters`: models that a sequence asks.
    Before any report only the hop is expected.
    """

    def __init__(self) -> None:
        self._split = 0
        self._guesses = _Guesses()
        self._by_split = {0: self._guesses}
        self._drafters = 1
        self._hop = _ByDrafters()
        self._reading = RecentMedian()  # of a token
        self._parts = self._part_rounds = 0.0

    @property
    def split(self) -> int:
        return self._split

    @property
    def is_known(self) -> bool:
        return self._part_rounds > 0.0 and self._nearest() is not None

    @property
    def hop_s(self) -> float:
        return self._hop.of(self._drafters, DEFAULT_HOP_S)

    def expect(self, split: int, slowdown: float) -> None:
        """Expect drafting under a split to take `slowdown` times that under split 0 until some is seen."""
        self._by_split.setdefault(split, _Guesses()).slowdown = slowdown

    def use(self, split: int) -> None:
        """Use this split's costs from now on; at first it is 0."""
        self._split, self._guesses = split, self._by_split.setdefault(split, _Guesses())

    def at(self, split: int) -> Self:
        """Return the costs under another split; both objects share what is learnt of it."""
        found = copy(self)
        found.use(split)
        return found

    def ask(self, drafters: int) -> None:
        """Use the costs of so many drafters from now on; at first it is 1."""
        self._drafters = drafters

    def of(self, drafters: int) -> Self:
        """Return the costs of so many drafters; both objects share what is learnt."""
        found = copy(self)
        found.ask(drafters)
        return found

    def update(
        self,
        batch: int,
        depth: int,
        came_s: float,
        reports: Listed[DraftReport],
        launched_s: float = inf,
        drafters: int = 1,
        *,
        is_first: bool = False,
    ) -> None:
        """Learn from drafts of `depth` tokens for `batch` sequences that were found after `came_s`.

        The slowest of the nodes with a sound report counts. Without one all of the time counts as guessing. A step that
        began before, after `launched_s`, hid their arrival: then that time is the least that they took. `is_first`:
        nodes that guess ahead could not do so yet, which says nothing of later drafts.
        """
        if batch < 1 or depth < 1 or not 0.0 <= came_s < float("inf"):
            return
        least_s = min(came_s, launched_s)
        expected_s = self.of(drafters).hop_s
        guess_s, guessed = max(0.0, least_s - expected_s), depth
        if reports:
            slowest = max(reports, key=lambda report: report.guess_s + report.read_s)
            guess_s, guessed = slowest.guess_s, min(slowest.guessed, depth)
            hop_s = least_s - guess_s - slowest.read_s
            if came_s <= launched_s or hop_s > expected_s:
                self._hop.add(drafters, hop_s)
            self.update_reading(slowest)
        if not is_first:
            self._parts = self._parts * DECAY + guessed / depth
            self._part_rounds = self._part_rounds * DECAY + 1.0
        if guessed:
            self._guesses.token_s.setdefault(size_class(batch), _ByDrafters()).add(drafters, guess_s / guessed)

    def update_reading(self, report: DraftReport) -> None:
        if report.read_tokens >= (LEAST_READ if self._reading.count else 1):
            self._reading.add(report.read_s / report.read_tokens)

    def guess_s(self, batch: int, depth: int) -> float:
        """Return the seconds of `depth` guesses, none ahead, without the hop; 0 before any draft."""
        near = self._nearest()
        if near is None or batch < 1:
            return 0.0
        size = size_class(batch)
        known = min(near.token_s, key=lambda one: (abs(one - size), one))
        return depth * self._guesses.slowdown / near.slowdown * near.token_s[known].of(self._drafters)

    def seconds(self, batch: int, depth: int) -> float:
        """Return the mean seconds of asking for drafts; 0 without draft tokens."""
        return self.hop_s + self._part * self.guess_s(batch, depth) if batch > 0 and depth > 0 else 0.0

    def wait_s(self, batch: int, depth: int) -> float:
        """Return the seconds of drafts of which nothing was guessed ahead."""
        return self.hop_s + self.guess_s(batch, depth) if batch > 0 and depth > 0 else 0.0

    def span(self, batch: int, depth: int) -> list[float]:
        return [self.seconds(batch, tokens) for tokens in range(depth + 1)]

    def read_s(self, unread: int) -> float:
        """Return the seconds to read unseen tokens; a few are part of any draft."""
        return self._reading.value * unread if unread > FEW_UNREAD else 0.0

    @property
    def _part(self) -> float:
        return self._parts / self._part_rounds if self._part_rounds else 0.0

    def _nearest(self) -> _Guesses | None:
        if self._guesses.token_s:
            return self._guesses
        known = [split for split, guesses in self._by_split.items() if guesses.token_s]
        return self._by_split[min(known, key=lambda split: abs(split - self._split))] if known else None


class TableCosts:
    """The seconds of drafts by model-free drafters: so many for each sequence."""

    def __init__(self) -> None:
        self._sequence = RecentMedian()

    @property
    def is_known(self) -> bool:
        return self._sequence.count > 0

    def update(self, batch: int, came_s: float) -> None:
        if batch > 0 and 0.0 <= came_s < float("inf"):
            self._sequence.add(came_s / batch)

    def seconds(self, batch: int, depth: int) -> float:
        return batch * self._sequence.value if depth > 0 else 0.0

    wait_s = seconds

    def span(self, batch: int, depth: int) -> list[float]:
        return [0.0, *[self.seconds(batch, 1)] * depth]


def is_sound(report: DraftReport, came_s: float) -> bool:
    """Tell whether a report of drafts that came after `came_s` can be true."""
    return (
        isfinite(report.guess_s)
        and isfinite(report.read_s)
        and min(report.guess_s, report.read_s, report.guessed, report.read_tokens) >= 0
        and report.guess_s + report.read_s <= came_s
    )

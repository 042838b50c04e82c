"""Stand-ins for the models over a log of real drafts, on a clock of their machine's own.

They say what the real ones said, and let the time pass that those took. Two things are approximated. Where several
drafters share their tokens and the shared one leaves the text, a drafter goes on with what it said from there on its
own; all of it is wrong by then, so it costs rows and time, and changes no text. And guesses beyond those recorded, made
while running ahead or after a token of another's, are as good as if the target's state were known there.
"""

from collections.abc import Sequence as Listed
from dataclasses import dataclass, field

import numpy as np

from app.estimates.step_costs import StepCosts
from app.request import Sampling, TokenLogprobs
from app.state import BatchEntry, CachedSequence, Guess, Tree
from bench.simulate.log import DrafterLog, Log, Text

WORD = b"\0\0"  # for a state: that there is one
NOTHING = Guess(0, 0.01, 1, 0.0)  # what a drafter says where the log knows nothing
PLENTY = 2**40  # tokens


@dataclass(slots=True)
class SimClock:
    """A machine's clock, in simulated seconds. Work of several lanes in one step passes at the same time."""

    now_s: float = 0.0
    step_s: float = 0.0  # between two steps of several lanes: what agreeing takes
    is_serial: bool = False  # one set of cores: lanes wait for each other
    _lanes: set[str] = field(default_factory=set)
    _began_s: float = 0.0

    def time(self) -> float:
        return self.now_s

    def monotonic(self) -> float:
        return self.now_s

    def perf_counter(self) -> float:
        return self.now_s

    def run(self, lane: str, seconds: float) -> None:
        """Let time pass on one lane; the second piece of work on a lane begins when all of the step is done."""
        if self.is_serial or lane in self._lanes:
            self._lanes = set()
        if not self._lanes:
            self._began_s = self.now_s + self.step_s
        self._lanes.add(lane)
        self.now_s = max(self.now_s, self._began_s + seconds)

    def rest(self) -> None:
        """A piece of work has ended; the next one begins a step."""
        self._lanes = set()


class LogTarget:
    """A model runner that says the log's texts. Has memory for everything."""

    capacity_tokens = free_tokens = PLENTY

    def __init__(self, log: Log, costs: StepCosts, clock: SimClock) -> None:
        """`costs`: the truth, which the verifier's own table follows."""
        self._texts = log.texts
        self._costs = costs
        self._clock = clock
        self.busy_s = 0.0
        self.rows = 0

    def try_reserve(self, work: BatchEntry) -> bool:
        return True

    def release(self, sequence: CachedSequence) -> None:
        sequence.cached = 0

    def cover(self, sequence: CachedSequence, tokens: int) -> None:
        sequence.cached = tokens

    def adopt(self, sequence: CachedSequence) -> int:
        return 0

    def forward(self, works: list[BatchEntry]) -> "list[LogRows | None]":
        """Rows for final works; meanwhile the time passes that so many rows and branches take."""
        rows = sum(len(work.tokens) + len(work.tree) for work in works)
        reading = self._costs.reading
        seconds = self._costs.seconds(rows) + self._costs.fork_s * sum(_branches(work.tree) for work in works)
        seconds += sum(reading.seconds(work.start, len(work.tokens) + len(work.tree)) for work in works)
        self._clock.run("target", seconds)
        self._clock.rest()
        self.busy_s += seconds
        self.rows += rows
        return [LogRows(self._texts[text_of(w.sequence.id)]) if w.final else None for w in works]

    def accept(self, work: BatchEntry, path: list[int]) -> None:
        work.sequence.cached = work.start + len(work.tokens) + len(path)

    def drop(self, work: BatchEntry) -> None:
        """There is nothing to give back."""

    def invalidate(self, work: BatchEntry) -> None:
        self.release(work.sequence)


@dataclass(frozen=True, slots=True)
class LogRows:
    """The target's opinion on one work: its text goes on as it did. Rows off the accepted path are never looked at."""

    text: Text

    def token(
        self, node: int, position: int, sampling: Sampling, history: list[int], mask: np.ndarray | None = None
    ) -> int:
        return self.text.tokens[position - len(self.text.prompt_ids)]

    def logprobs(
        self, node: int, token: int, top: int, sampling: Sampling, history: list[int], mask: np.ndarray | None = None
    ) -> TokenLogprobs:
        raise NotImplementedError("no log has any, and no simulated request wants them")

    def state(self, node: int) -> bytes | None:
        return WORD


class LogGuesser:
    """A drafter's model that guesses what the log says."""

    def __init__(self, name: str, texts: Listed[Text], log: DrafterLog, clock: SimClock) -> None:
        self._name = name
        self._texts = texts
        self._log = log
        self._clock = clock
        self._bases: dict[str, int] = {}  # by request: the length at which it was given a state last

    def try_reserve(self, work: BatchEntry, ahead: int) -> bool:
        return True

    def guess(self, works: list[BatchEntry], depth: int, floor: float) -> list[list[Guess]]:
        found = [self._chain(work.sequence)[:depth] or [NOTHING] for work in works]
        unread = sum(len(work.tokens) - 1 for work in works)
        seconds = max(map(len, found)) * _per_token(self._log.token_s, len(works)) + unread * self._log.read_s
        self._clock.run(self._name, seconds)
        return found

    def release(self, sequence: CachedSequence) -> None:
        self._bases.pop(sequence.id, None)

    def cover(self, sequence: CachedSequence, tokens: int) -> None:
        sequence.cached = tokens

    def invalidate(self, work: BatchEntry) -> None:
        self.release(work.sequence)

    def _chain(self, sequence: CachedSequence) -> list[Guess]:
        """What it said after these tokens: on the chain that began where it was given a state; where that says nothing
        of them, or no more, on the one from where the tokens leave the text."""
        tokens, request_id = sequence.tokens, sequence.id
        if sequence.state is not None or request_id not in self._bases:
            self._bases[request_id] = len(tokens)
        base = self._bases[request_id]
        own, path = self._recorded(request_id, base), tokens[base:]
        if [guess.token for guess in own[: len(path)]] != path or len(own) == len(path):
            base = self._follows_text(request_id, tokens)
            own, path = self._recorded(request_id, base), tokens[base:]
        return own[len(path) :]

    def _recorded(self, request_id: str, length: int) -> list[Guess]:
        chains = self._log.guesses[text_of(request_id)]
        at = length - len(self._texts[text_of(request_id)].prompt_ids)
        return [*chains[at]] if 0 <= at < len(chains) else []

    def _follows_text(self, request_id: str, tokens: Listed[int]) -> int:
        """The longest part of the tokens that the text begins with."""
        text = self._texts[text_of(request_id)]
        whole = (*text.prompt_ids, *text.tokens)
        return next((i for i, pair in enumerate(zip(tokens, whole, strict=False)) if pair[0] != pair[1]), len(tokens))


def text_of(request_id: str) -> int:
    """The text that a request says: `text.number`."""
    return int(request_id.partition(".")[0])


def _branches(tree: Tree) -> int:
    """Leaves beside the main one."""
    return len(tree) - len(set(tree.parents)) if len(tree) else 0


def _per_token(token_s: dict[int, float], batch: int) -> float:
    """Of the nearest measured batch that is not smaller; beyond the largest, in proportion."""
    larger = [size for size in sorted(token_s) if size >= batch]
    if larger:
        return token_s[larger[0]]
    most = max(token_s)
    return token_s[most] * batch / most

"""Stand in for the models: replay a recording on the clock of a simulated machine.

The stand-ins return the recorded tokens and let the recorded time pass. Two things are approximate. Behind a wrong
token that was not recorded, e.g. another drafter's, a drafter continues its own recorded chain, which is wrong by then
in any case. And guesses beyond the recorded ones, while running ahead or after another drafter's token, are as good as
if the target's state were known there.
"""

from collections.abc import Sequence as Listed
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np

from app.engine.kv.block_manager import PagedRunner
from app.engine.kv.pages import PagePool
from app.engine.kv.sizing import PAGE_TOKENS
from app.engine.step_costs import StepCosts
from app.engine.target import StepOnCollect
from app.request import Sampling, TokenLogprobs
from app.state import BatchEntry, CachedSequence, Guess
from lab.simulate.exits import Exits, right_nodes
from lab.simulate.log import DrafterLog, Log, Text

WORD = b"\0\0"  # stands for a state
NOTHING = Guess(0, 0.01, 1, 0.0)  # the guess where the log has none
PLENTY = 2**40  # tokens
MEMORY_TOKENS = 2**21  # of a target's cache, where none is stated: more than any simulation fills


class Device(Protocol):
    """What target and drafters run on."""

    def verify(self, at_s: float, rows: float, seconds: float, reading_s: float) -> float:
        """Return the seconds from `at_s` until a step of so many rows has ended.

        It takes `seconds` alone on the whole device, and `reading_s` beside for its contexts.
        """
        ...

    def draft(self, at_s: float, tokens: int, seconds: float) -> float: ...


class OwnDevice:
    """A device for each model, as the recording had it."""

    def verify(self, at_s: float, rows: float, seconds: float, reading_s: float) -> float:
        return seconds + reading_s

    def draft(self, at_s: float, tokens: int, seconds: float) -> float:
        return seconds


@dataclass(slots=True)
class SimClock:
    """A machine's clock, in simulated seconds; lanes of one step work at the same time."""

    now_s: float = 0.0
    is_serial: bool = False  # one set of cores: lanes wait for each other
    _lanes: set[str] = field(default_factory=set)
    _began_s: float = 0.0

    def time(self) -> float:
        return self.now_s

    monotonic = perf_counter = thread_time = time

    def run(self, lane: str, seconds: float) -> None:
        """Let time pass on one lane; a lane's second piece of work begins a new step."""
        if self.is_serial or lane in self._lanes:
            self._lanes = set()
        if not self._lanes:
            self._began_s = self.now_s
        self._lanes.add(lane)
        self.now_s = max(self.now_s, self._began_s + seconds)

    def rest(self) -> None:
        """End a piece of work, so that the next one begins a step."""
        self._lanes = set()


class LogTarget(PagedRunner):
    """A model runner that generates the log's texts. Each node of a tree takes a slot behind the sequence's own."""

    def __init__(
        self,
        log: Log,
        costs: StepCosts,
        clock: SimClock,
        device: Device,
        kv_tokens: int = MEMORY_TOKENS,
        exits: Exits | None = None,
    ) -> None:
        super().__init__(PagePool(kv_tokens // PAGE_TOKENS, PAGE_TOKENS), shares=False)
        self._device = device
        self._texts = log.texts
        self._costs = costs
        self._clock = clock
        self._exits = exits
        self.busy_s = 0.0
        self.steps = 0

    def try_reserve(self, work: BatchEntry) -> bool:
        return self.pool.try_grow(work.sequence.pages, work.start + len(work.tokens) + len(work.tree))

    def launch(self, works: list[BatchEntry]) -> StepOnCollect:
        return StepOnCollect(partial(self._run, works), self._clock.perf_counter)

    def _run(self, works: list[BatchEntry]) -> "list[LogRows | None]":
        """Return rows for final batch entries, and let the time of the step pass."""
        rows = sum(len(work.tokens) + len(work.tree) for work in works)
        seconds, computed = self._costs.seconds(rows, sum(work.silent for work in works)), float(rows)
        if self._exits is not None:
            seconds, computed = self._exits.pass_s(works, self._right, self._costs)
        reading_s = self._costs.reading.step_s((work.start, len(work.tokens) + len(work.tree)) for work in works)
        seconds = self._device.verify(self._clock.now_s, computed, seconds, reading_s)
        self._clock.run("target", seconds)
        self._clock.rest()
        self.busy_s += seconds
        self.steps += 1
        return [LogRows(self._texts[text_of(w.sequence.id)]) if w.final else None for w in works]

    def _right(self, work: BatchEntry) -> list[bool]:
        text = self._texts[text_of(work.sequence.id)]
        return right_nodes(work.tree, text.tokens, len(work.sequence.tokens) - len(text.prompt_ids))

    def accept(self, work: BatchEntry, path: list[int]) -> None:
        self._keep(work, work.start + len(work.tokens) + len(path))

    def _clear(self, pages: list[int]) -> None:
        """Do nothing: the pages hold no numbers."""


@dataclass(frozen=True, slots=True)
class LogRows:
    """The target's rows of one batch entry, by its recorded text; rows off the accepted path are never read."""

    text: Text

    def token(
        self, node: int, position: int, sampling: Sampling, history: Listed[int], mask: np.ndarray | None = None
    ) -> int:
        return self.text.tokens[position - len(self.text.prompt_ids)]

    def logprobs(
        self, node: int, token: int, top: int, sampling: Sampling, history: Listed[int], mask: np.ndarray | None = None
    ) -> TokenLogprobs:
        raise NotImplementedError("no log has any, and no simulated request wants them")

    def state(self, node: int) -> bytes | None:
        return WORD


class LogGuesser:
    """A drafter's model that returns the log's guesses."""

    def __init__(
        self,
        name: str,
        texts: Listed[Text],
        log: DrafterLog,
        clock: SimClock,
        slowdown: float = 1.0,
        device: Device | None = None,
    ) -> None:
        self._name = name
        self._device = device or OwnDevice()
        self._texts = texts
        self._log = log
        self._clock = clock
        self._slowdown = slowdown
        self._bases: dict[int, int] = {}  # by the sequence's id(): the length at which it was given a state last

    def try_reserve(self, work: BatchEntry, ahead: int) -> bool:
        return True

    def guess(self, works: list[BatchEntry], depth: int, floor: float) -> list[list[Guess]]:
        """Return a chain of up to `depth` guesses for each batch entry, and let the recorded time pass."""
        found = [self._chain(work.sequence)[:depth] or [NOTHING] for work in works]
        self._pass(works, max(map(len, found)))
        return found

    def _pass(self, works: list[BatchEntry], steps: int) -> None:
        """Let the time of so many steps pass, and of reading what is new."""
        unread = sum(len(work.tokens) - 1 for work in works)
        token_s = token_seconds(self._log, [work.start + len(work.tokens) for work in works])
        seconds = self._slowdown * (steps * token_s + unread * self._log.read_s)
        self._clock.run(self._name, self._device.draft(self._clock.now_s, steps * len(works) + unread, seconds))

    def release(self, sequence: CachedSequence) -> None:
        self._bases.pop(id(sequence), None)
        sequence.cached = 0

    def cover(self, sequence: CachedSequence, tokens: int) -> None:
        sequence.cached = tokens

    def fork(self, sequence: CachedSequence, tokens: list[int]) -> CachedSequence:
        fork = CachedSequence(sequence.id, tokens, cached=min(sequence.cached, len(tokens) - 1))
        if id(sequence) in self._bases:
            self._bases[id(fork)] = self._bases[id(sequence)]
        return fork

    def invalidate(self, work: BatchEntry) -> None:
        self.release(work.sequence)

    def _chain(self, sequence: CachedSequence) -> list[Guess]:
        """Return the recorded guesses behind these tokens, any node of a tree: from where a state was given last on."""
        tokens, key, number = sequence.tokens, id(sequence), text_of(sequence.id)
        if sequence.state is not None:
            self._bases[key] = len(tokens)
        elif key not in self._bases:
            self._bases[key] = self._follows_text(number, tokens)
        base = min(self._bases[key], len(tokens))
        text = self._texts[number]
        return [*self._log.after(number, text.tokens, base - len(text.prompt_ids), tokens[base:])]

    def _follows_text(self, number: int, tokens: Listed[int]) -> int:
        """Count the tokens that agree with the text from its beginning."""
        text = self._texts[number]
        whole = (*text.prompt_ids, *text.tokens)
        return next((i for i, pair in enumerate(zip(tokens, whole, strict=False)) if pair[0] != pair[1]), len(tokens))


def text_of(request_id: str) -> int:
    """Return the index of a request's text: its id is `text.number`."""
    return int(request_id.partition(".")[0])


def token_seconds(log: DrafterLog, lengths: Listed[int]) -> float:
    """Return the seconds of one more guess for each of these sequences, given by their cached tokens.

    By the next larger measured batch; beyond the largest, in proportion.
    """
    batch, most = len(lengths), max(log.token_s)
    size = min((size for size in log.token_s if size >= batch), default=most)
    return log.token_s[size] * max(1.0, batch / most) + log.context_s * sum(lengths)

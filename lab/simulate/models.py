"""Stand in for the models: replay a recording on the clock of a simulated machine.

The stand-ins return the recorded tokens and let the recorded time pass. Two things are approximate. Where drafters
share their tokens and the shared one leaves the text, a drafter continues its own recorded chain, which is wrong by
then in any case. And guesses beyond the recorded ones, while running ahead or after another drafter's token, are as
good as if the target's state were known there.
"""

from collections import Counter
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

    def draft(self, at_s: float, tokens: int, seconds: float) -> float:
        """Return the seconds from `at_s` until a drafter has computed so many tokens; alone it takes `seconds`."""
        ...


class OwnDevice:
    """A device for each model, as the recording had it."""

    def verify(self, at_s: float, rows: float, seconds: float, reading_s: float) -> float:
        """Return what the step takes by itself."""
        return seconds + reading_s

    def draft(self, at_s: float, tokens: int, seconds: float) -> float:
        """Return what the guesses take by themselves."""
        return seconds


@dataclass(slots=True)
class SimClock:
    """A machine's clock, in simulated seconds; lanes of one step work at the same time."""

    now_s: float = 0.0
    is_serial: bool = False  # one set of cores: lanes wait for each other
    _lanes: set[str] = field(default_factory=set)
    _began_s: float = 0.0

    def time(self) -> float:
        """Return the simulated seconds, as `time.time`."""
        return self.now_s

    def monotonic(self) -> float:
        """Return the simulated seconds, as `time.monotonic`."""
        return self.now_s

    def perf_counter(self) -> float:
        """Return the simulated seconds, as `time.perf_counter`."""
        return self.now_s

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
        """Take the true step costs on a whole device, the tokens that its cache holds, and where rows leave a pass."""
        super().__init__(PagePool(kv_tokens // PAGE_TOKENS, PAGE_TOKENS), shares=False)
        self._device = device
        self._texts = log.texts
        self._costs = costs
        self._clock = clock
        self._exits = exits
        self.busy_s = 0.0
        self.steps = 0
        self.rows = 0
        self.lengths = Counter[int]()  # draft tokens verified for a sequence in a step, prompts left out
        self.batches = Counter[int]()  # sequences in a step
        self.batch_s: dict[int, float] = {}  # and the seconds of steps of so many

    def try_reserve(self, work: BatchEntry) -> bool:
        """Reserve pages for the entry's tokens and tree; False, with none taken, if there are too few."""
        return self.pool.try_grow(work.sequence.pages, work.start + len(work.tokens) + len(work.tree))

    def launch(self, works: list[BatchEntry]) -> StepOnCollect:
        """Launch a step that runs when it is collected, on the simulated clock."""
        return StepOnCollect(partial(self._run, works), self._clock.perf_counter)

    def _run(self, works: list[BatchEntry]) -> "list[LogRows | None]":
        """Return rows for final batch entries, and let the time of the step pass."""
        rows = sum(len(work.tokens) + len(work.tree) for work in works)
        if self._exits is not None:
            seconds, computed = self._exits.pass_s(works, self._right, self._costs)
        else:
            silent = sum(work.silent for work in works)
            seconds, computed = self._costs.seconds(rows, silent), float(rows)
        reading_s = self._costs.reading.step_s((work.start, len(work.tokens) + len(work.tree)) for work in works)
        seconds = self._device.verify(self._clock.now_s, computed, seconds, reading_s)
        self._clock.run("target", seconds)
        self._clock.rest()
        self.busy_s += seconds
        self.steps += 1
        self.rows += rows
        self.lengths.update(len(work.tree) for work in works if work.final and len(work.tokens) == 1)
        self.batches[len(works)] += 1
        self.batch_s[len(works)] = self.batch_s.get(len(works), 0.0) + seconds
        return [LogRows(self._texts[text_of(w.sequence.id)]) if w.final else None for w in works]

    def _right(self, work: BatchEntry) -> list[bool]:
        text = self._texts[text_of(work.sequence.id)]
        return right_nodes(work.tree, text.tokens, len(work.sequence.tokens) - len(text.prompt_ids))

    def accept(self, work: BatchEntry, path: list[int]) -> None:
        """Keep the entry's tokens and the accepted path in the cache."""
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
        """Return the recorded token at the position; `mask`, (V,) bool, is ignored."""
        return self.text.tokens[position - len(self.text.prompt_ids)]

    def logprobs(
        self, node: int, token: int, top: int, sampling: Sampling, history: Listed[int], mask: np.ndarray | None = None
    ) -> TokenLogprobs:
        """Raise NotImplementedError: a log has no probabilities."""
        raise NotImplementedError("no log has any, and no simulated request wants them")

    def state(self, node: int) -> bytes | None:
        """Return a placeholder for the target's state."""
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
        self._bases: dict[str, int] = {}  # by request: the length at which it was given a state last

    def try_reserve(self, work: BatchEntry, ahead: int) -> bool:
        """Return True: there is always memory."""
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
        """Remove what is held of the sequence."""
        self._bases.pop(sequence.id, None)

    def cover(self, sequence: CachedSequence, tokens: int) -> None:
        """Count so many tokens as cached."""
        sequence.cached = tokens

    def invalidate(self, work: BatchEntry) -> None:
        """Release the cache of the entry's sequence."""
        self.release(work.sequence)

    def _chain(self, sequence: CachedSequence) -> list[Guess]:
        """Return the recorded guesses after these tokens.

        They come from the chain that began where a state was given, or, where that has other tokens or ends, from the
        chain at the place where the tokens leave the text.
        """
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
        """Count the tokens that agree with the text from its beginning."""
        text = self._texts[text_of(request_id)]
        whole = (*text.prompt_ids, *text.tokens)
        return next((i for i, pair in enumerate(zip(tokens, whole, strict=False)) if pair[0] != pair[1]), len(tokens))


def text_of(request_id: str) -> int:
    """Return the index of a request's text: its id is `text.number`."""
    return int(request_id.partition(".")[0])


def token_seconds(log: DrafterLog, lengths: Listed[int]) -> float:
    """Return the seconds of one more guess for each of these sequences, given by their cached tokens."""
    return _per_token(log.token_s, len(lengths)) + log.context_s * sum(lengths)


def _per_token(token_s: dict[int, float], batch: int) -> float:
    """Return the seconds of the next larger measured batch; beyond the largest, in proportion."""
    larger = [size for size in sorted(token_s) if size >= batch]
    if larger:
        return token_s[larger[0]]
    most = max(token_s)
    return token_s[most] * batch / most

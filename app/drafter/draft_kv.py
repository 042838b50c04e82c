"""Keep a drafter's KV caches, one a sequence, within the model's memory."""

import logging
from collections import OrderedDict
from collections.abc import Iterable
from collections.abc import Sequence as Listed
from math import inf
from typing import Final, Protocol

from app.clock import SYSTEM, Clock
from app.recent import RecentMedian
from app.stages.draft.protocol import Context
from app.state import BatchEntry, CachedSequence, Guess, Tree

log = logging.getLogger(__name__)
CHUNK_TOKENS = 512  # prompt tokens a pass
SPARE_TOKENS = 16  # tokens of a sequence that a guess may read along; more are read in passes before it
MAX_SEQUENCES = 1024  # known at once, far more than are ever in one round


class Guesser(Protocol):
    def try_reserve(self, work: BatchEntry, ahead: int) -> bool: ...

    def guess(self, works: list[BatchEntry], depth: int, floor: float) -> list[list[Guess]]:
        """Guess up to `depth` tokens; end when no chain's survival is at least `floor`. Raises ArithmeticError."""
        ...

    def release(self, sequence: CachedSequence) -> None: ...

    def fork(self, sequence: CachedSequence, tokens: list[int]) -> CachedSequence | None:
        """Return a sequence of these tokens, with what is cached of those before the last; None without room."""
        ...

    def cover(self, sequence: CachedSequence, tokens: int) -> None: ...

    def invalidate(self, work: BatchEntry) -> None: ...


class DraftKV:
    """Guess for sequences: `align` sets the tokens to read, `advance` appends to them."""

    def __init__(self, name: str, guesser: Guesser, max_context: int, clock: Clock = SYSTEM) -> None:
        self.name: Final = name
        self.max_context: Final = max_context
        self.read = 0  # tokens read in passes of their own so far
        self.read_s = 0.0  # and the seconds that took
        self.token_s = 0.0  # of reading a token, the least that were seen: beside a step of the target it takes longer
        self._guesser = guesser
        self._clock = clock
        self._sequences: OrderedDict[str, CachedSequence] = OrderedDict()
        self._forks: dict[int, CachedSequence] = {}  # by id()
        self._level_s: dict[int, RecentMedian] = {}  # by bits of the rows
        self._any_level_s = RecentMedian()

    def align(self, context: Context, tokens: list[int]) -> None:
        sequence = self._sequences.get(context.request_id)
        if sequence is None:
            sequence = CachedSequence(context.request_id, [], context.sampling, context.tenant)
            self._sequences[context.request_id] = sequence
        self._sequences.move_to_end(context.request_id)
        if len(self._sequences) > MAX_SEQUENCES:
            self.remove(next(iter(self._sequences)))
        known = sequence.tokens
        shared = min(sequence.cached, len(tokens) - 1)
        if known[:shared] != tokens[:shared]:
            shared = next(i for i in range(shared) if known[i] != tokens[i])
        self._guesser.cover(sequence, shared)
        sequence.tokens = list(tokens)
        sequence.state = context.state if len(tokens) == len(context.tokens) else None  # of committed tokens only

    def guess(
        self, request_ids: Listed[str], depth: int, least_survival: float, *, in_spare_time: bool = False
    ) -> dict[str, list[Guess]]:
        """Guess up to `depth` tokens in a chain for each sequence.

        A sequence without room in memory, or whose logits are not finite, has none. In spare time no other sequence
        loses its cache, and one with too much to read is skipped.
        """
        sequences = [self._sequences[request_id] for request_id in request_ids if request_id in self._sequences]
        spare = len(sequences) if in_spare_time else 0
        found = self.guess_behind(sequences, depth, least_survival, spare=spare)
        return {sequence.id: guesses for sequence, guesses in zip(sequences, found, strict=True) if guesses}

    def guess_behind(
        self, sequences: list[CachedSequence], depth: int, least_survival: float, *, spare: int = 0
    ) -> list[list[Guess]]:
        """Guess as `guess` does, for sequences and forks, for the last `spare` in spare time.

        Those that lost their caches meanwhile have no guesses.
        """
        wanted = [s for s in sequences[: len(sequences) - spare] if self.holds(s)]
        if any(map(self.is_unread, wanted)):
            self._read(wanted)
        works = [
            BatchEntry(s, s.cached, s.tokens[s.cached :], Tree(), final=True)
            for s in sequences
            if self.holds(s) and not self.is_unread(s)
        ]
        busy = dict.fromkeys(map(id, wanted), {s.id for s in wanted})
        # A sequence may take the forks' room, those before and behind it in the list.
        works = [
            w for w in works if self.holds(w.sequence) and self._try_reserve(w, busy.get(id(w.sequence)), depth - 1)
        ]
        works = [work for work in works if self.holds(work.sequence)]
        is_level = depth == 1 and all(len(work.tokens) == 1 for work in works)
        began_s = self._clock.perf_counter() if is_level else 0.0
        found = self._guess(works, depth, least_survival)
        if is_level and any(found):
            took_s = self._clock.perf_counter() - began_s
            self._level_s.setdefault(len(works).bit_length(), RecentMedian()).add(took_s)
            self._any_level_s.add(took_s)
        own: dict[int, list[Guess]] = {}
        for work, guesses in zip(works, found, strict=bool(found)):
            self._guesser.cover(work.sequence, work.start + len(work.tokens))
            own[id(work.sequence)] = guesses
        return [own.get(id(sequence), []) for sequence in sequences]

    @property
    def usual_level_s(self) -> float:
        """Return the seconds of one more guess in the last trees; 0 before any."""
        return self._any_level_s.value

    def level_s(self, rows: int) -> float:
        """Return the usual seconds of one guess in each of so many rows; 0 before any."""
        near = min(self._level_s, key=lambda size: (abs(size - rows.bit_length()), size), default=None)
        return 0.0 if near is None else self._level_s[near].value

    @property
    def most_rows(self) -> int:
        """Return the most rows of a guess whose seconds are known; about that many."""
        return 1 << max(self._level_s, default=0) >> 1

    def find(self, request_id: str) -> CachedSequence | None:
        return self._sequences.get(request_id)

    def fork(self, sequence: CachedSequence, tokens: list[int]) -> CachedSequence | None:
        """Fork a sequence before its last token, until it is adopted or dropped; None without room."""
        fork = self._guesser.fork(sequence, tokens)
        if fork is not None:
            self._forks[id(fork)] = fork
        return fork

    def drop_forks(self, forks: Iterable[CachedSequence]) -> None:
        """Release those of the caches that are forks."""
        for fork in forks:
            if self._forks.pop(id(fork), None) is not None:
                self._guesser.release(fork)

    def adopt(self, request_id: str, fork: CachedSequence | None) -> None:
        """Let a fork take the place of the request's own sequence, if it is held as one."""
        if fork is not None and self._forks.pop(id(fork), None) is not None:
            own = self._sequences.get(request_id)
            if own is not None:
                self._guesser.release(own)
            self._sequences[request_id] = fork

    def append(self, sequence: CachedSequence, tokens: Listed[int]) -> None:
        """Append guesses, of which all but the last were read to make the next one."""
        self._guesser.cover(sequence, sequence.cached + len(tokens) - 1)
        sequence.tokens += tokens
        sequence.state = None

    def advance(self, request_id: str, tokens: Listed[int]) -> None:
        self.append(self._sequences[request_id], tokens)

    def remove(self, request_id: str) -> None:
        sequence = self._sequences.pop(request_id, None)
        if sequence is not None:
            self._guesser.release(sequence)

    def holds(self, sequence: CachedSequence) -> bool:
        return self._sequences.get(sequence.id) is sequence or id(sequence) in self._forks

    def read_in(self, request_id: str, seconds: float) -> bool:
        """Read as much of a sequence's unread tokens as fits into the time, or a few; tell whether there were any.

        No other sequence loses its cache for it, but forks may.
        """
        sequence = self._sequences.get(request_id)
        if sequence is None or not self.is_unread(sequence):
            return False
        most = int(max(0.0, seconds) / self.token_s) if self.token_s else CHUNK_TOKENS
        most = min(CHUNK_TOKENS, max(SPARE_TOKENS, most))
        if self._read_chunk(sequence, None, most):
            return True
        had_forks = bool(self._forks)
        self.drop_forks([*self._forks.values()])
        return had_forks and self.holds(sequence) and self._read_chunk(sequence, None, most)

    def seen(self, request_id: str) -> int:
        """Return how many of a sequence's tokens were read, or go along with a guess."""
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return 0
        return sequence.cached if self.is_unread(sequence) else len(sequence.tokens)

    def is_unread(self, sequence: CachedSequence) -> bool:
        """Tell whether a sequence has more to read than goes along with a guess."""
        return sequence.uncached > SPARE_TOKENS

    def _read(self, sequences: list[CachedSequence]) -> None:
        busy = {s.id for s in sequences}
        for s in sequences:
            while self.is_unread(s) and self._read_chunk(s, busy, CHUNK_TOKENS):
                pass

    def _read_chunk(self, sequence: CachedSequence, busy: set[str] | None, most: int) -> bool:
        chunk, began_s = sequence.tokens[sequence.cached : -1][:most], self._clock.perf_counter()
        work = BatchEntry(sequence, sequence.cached, chunk, Tree(), final=False)
        if not self._try_reserve(work, busy, ahead=0) or not self._guess([work], 1, 0.0):
            return False
        self._guesser.cover(sequence, sequence.cached + len(chunk))
        took_s = self._clock.perf_counter() - began_s
        self.read += len(chunk)
        self.read_s += took_s
        self.token_s = min(self.token_s or inf, took_s / len(chunk))
        return True

    def _guess(self, works: list[BatchEntry], depth: int, least_survival: float) -> list[list[Guess]]:
        try:
            return self._guesser.guess(works, depth, least_survival) if works else []
        except ArithmeticError as error:
            log.warning("drafter %s: %s", self.name, error)
            for work in works:
                self._guesser.invalidate(work)
                self.remove(work.sequence.id)
            return []

    def _try_reserve(self, work: BatchEntry, busy: set[str] | None, ahead: int) -> bool:
        """Reserve pages, of forks first, then of idle sequences, the longest idle first; False if there are too few.

        Last of all the entry's own sequence loses its cache. If `busy` is None, or for a fork, none does.
        """
        if id(work.sequence) in self._forks:
            busy = None
        while not self._guesser.try_reserve(work, ahead):
            if busy is None:
                return False
            if self._forks:
                self.drop_forks([*self._forks.values()])
                continue
            idle = next((i for i, s in self._sequences.items() if i not in busy and s.pages), None)
            self.remove(work.sequence.id if idle is None else idle)
            if idle is None:
                return False
        return True

"""Keep a drafter's KV caches, one a sequence, within the model's memory."""

import logging
from collections import OrderedDict
from collections.abc import Sequence as Listed
from typing import Final, Protocol

from app.clock import SYSTEM, Clock
from app.recent import RecentMedian
from app.stages.draft.protocol import Context
from app.state import BatchEntry, CachedSequence, Guess, Tree

log = logging.getLogger(__name__)
CHUNK_TOKENS = 512  # prompt tokens a pass
SPARE_TOKENS = 16  # tokens of a sequence that a guess may read along; more are read in passes before it
SURE_WEIGHT = 0.01  # of a guess in the mean confidence
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
        self.sureness = 1.0  # mean confidence of first choices
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
        found = self.guess_behind(sequences, depth, least_survival, in_spare_time=in_spare_time)
        return {sequence.id: guesses for sequence, guesses in zip(sequences, found, strict=True) if guesses}

    def guess_behind(
        self, sequences: list[CachedSequence], depth: int, least_survival: float, *, in_spare_time: bool = False
    ) -> list[list[Guess]]:
        """Guess for sequences and forks, as `guess` does; none for those that lost their caches meanwhile."""
        held = [s for s in sequences if self._holds(s)]
        if not in_spare_time and any(s.uncached > SPARE_TOKENS for s in held):
            began_s = self._clock.perf_counter()
            self._read(held)
            self.read_s += self._clock.perf_counter() - began_s
        works = [
            BatchEntry(s, s.cached, s.tokens[s.cached :], Tree(), final=True)
            for s in held
            if s.uncached <= SPARE_TOKENS
        ]
        busy = None if in_spare_time else {s.id for s in held}
        # A sequence may take the forks' room, those before and behind it in the list.
        works = [w for w in works if self._holds(w.sequence) and self._try_reserve(w, busy, depth - 1)]
        works = [work for work in works if self._holds(work.sequence)]
        is_level = depth == 1 and all(len(work.tokens) == 1 for work in works)
        began_s = self._clock.perf_counter() if is_level else 0.0
        found = self._guess(works, depth, least_survival)
        if is_level and found:
            took_s = self._clock.perf_counter() - began_s
            self._level_s.setdefault(len(works).bit_length(), RecentMedian()).add(took_s)
            self._any_level_s.add(took_s)
        own: dict[int, list[Guess]] = {}
        for work, guesses in zip(works, found, strict=bool(found)):
            self._guesser.cover(work.sequence, work.start + len(work.tokens))
            own[id(work.sequence)] = guesses
            for guess in guesses:
                self.sureness += SURE_WEIGHT * (guess.confidence - self.sureness)
        return [own.get(id(sequence), []) for sequence in sequences]

    @property
    def usual_level_s(self) -> float:
        """Return the seconds of one more guess in the last trees; 0 before any."""
        return self._any_level_s.value

    def level_s(self, rows: int) -> float:
        """Return the usual seconds of one guess in each of so many rows; 0 before any."""
        near = min(self._level_s, key=lambda size: (abs(size - rows.bit_length()), size), default=None)
        return 0.0 if near is None else self._level_s[near].value

    def find(self, request_id: str) -> CachedSequence | None:
        return self._sequences.get(request_id)

    def fork(self, sequence: CachedSequence, tokens: list[int]) -> CachedSequence | None:
        """Fork a sequence before its last token, until `drop_forks`; None without room."""
        fork = self._guesser.fork(sequence, tokens)
        if fork is not None:
            self._forks[id(fork)] = fork
        return fork

    def drop_forks(self) -> None:
        for fork in self._forks.values():
            self._guesser.release(fork)
        self._forks.clear()

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

    def _holds(self, sequence: CachedSequence) -> bool:
        return self._sequences.get(sequence.id) is sequence or id(sequence) in self._forks

    def _read(self, sequences: list[CachedSequence]) -> None:
        busy = {s.id for s in sequences}
        for s in sequences:
            while s.uncached > SPARE_TOKENS:
                chunk = s.tokens[s.cached : -1][:CHUNK_TOKENS]
                work = BatchEntry(s, s.cached, chunk, Tree(), final=False)
                if not self._try_reserve(work, busy, ahead=0) or not self._guess([work], 1, 0.0):
                    break
                self._guesser.cover(s, s.cached + len(chunk))
                self.read += len(chunk)

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
        """Reserve pages, of idle sequences first, the longest idle before others; False if there are too few.

        Then forks go, and last of all the entry's own sequence loses its cache. If `busy` is None, or for a fork, none
        does.
        """
        if id(work.sequence) in self._forks:
            busy = None
        while not self._guesser.try_reserve(work, ahead):
            if busy is None:
                return False
            idle = next((i for i, s in self._sequences.items() if i not in busy and s.pages), None)
            if idle is None and self._forks:
                self.drop_forks()
                continue
            self.remove(work.sequence.id if idle is None else idle)
            if idle is None:
                return False
        return True

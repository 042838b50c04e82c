"""Keep a drafter's KV caches, one a sequence, within the model's memory."""

import logging
from collections import OrderedDict
from collections.abc import Sequence as Listed
from typing import Final, Protocol

from app.clock import SYSTEM, Clock
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

    def cover(self, sequence: CachedSequence, tokens: int) -> None: ...

    def invalidate(self, work: BatchEntry) -> None: ...


class DraftKV:
    """Guess for sequences: `align` sets the tokens to read, `advance` appends to them."""

    def __init__(self, name: str, guesser: Guesser, max_context: int, clock: Clock = SYSTEM) -> None:
        self.name: Final = name
        self.max_context: Final = max_context
        self.read = 0  # tokens read in passes of their own so far
        self.read_s = 0.0  # and the seconds that took
        self._guesser = guesser
        self._clock = clock
        self._sequences: OrderedDict[str, CachedSequence] = OrderedDict()

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
        if not in_spare_time and any(s.uncached > SPARE_TOKENS for s in sequences):
            began_s = self._clock.perf_counter()
            self._read(sequences)
            self.read_s += self._clock.perf_counter() - began_s
        works = [
            BatchEntry(s, s.cached, s.tokens[s.cached :], Tree(), final=True)
            for s in sequences
            if s.uncached <= SPARE_TOKENS
        ]
        busy = None if in_spare_time else set(request_ids)
        works = [work for work in works if self._try_reserve(work, busy, depth - 1)]
        found = self._guess(works, depth, least_survival)
        for work in works if found else ():
            self._guesser.cover(work.sequence, work.start + len(work.tokens))
        return {work.sequence.id: guesses for work, guesses in zip(works, found, strict=bool(found))}

    def advance(self, request_id: str, tokens: Listed[int]) -> None:
        sequence = self._sequences[request_id]
        self._guesser.cover(sequence, sequence.cached + len(tokens) - 1)
        sequence.tokens += tokens
        sequence.state = None

    def remove(self, request_id: str) -> None:
        sequence = self._sequences.pop(request_id, None)
        if sequence is not None:
            self._guesser.release(sequence)

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

        Last of all the entry's own sequence loses its cache. If `busy` is None none does.
        """
        while not self._guesser.try_reserve(work, ahead):
            if busy is None:
                return False
            idle = next((i for i, s in self._sequences.items() if i not in busy and s.pages), None)
            self.remove(work.sequence.id if idle is None else idle)
            if idle is None:
                return False
        return True

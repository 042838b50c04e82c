"""The `model` drafter: a small causal LM with its own KV cache, batched over sequences.

A committed token that was guessed stays in the cache, a wrong guess is rolled back by forgetting its length.
Under the top guess of each step the second best hangs as a leaf, if it is likely enough to be worth a row.
"""

import logging
from collections import OrderedDict
from collections.abc import Sequence as Listed
from typing import Protocol

from app.messages import Draft, Record, Speculation
from app.stages.draft.protocol import Context
from app.state import Guess, Sequence, Tree, Work

log = logging.getLogger(__name__)
MIN_SURVIVAL = 0.03  # a guess less likely than this, with all before it, is not worth going on from
MIN_SECOND = 0.15  # least confidence of a second branch
CHUNK_TOKENS = 512  # prompt tokens a pass
MAX_SEQUENCES = 1024  # known at once, far more than are ever in one round


class Guesser(Protocol):
    """The model behind the drafter (`app.engine.guesser`)."""

    def try_reserve(self, work: Work, ahead: int) -> bool: ...
    def guess(self, works: list[Work], depth: int, floor: float) -> list[list[Guess]]: ...
    def release(self, sequence: Sequence) -> None: ...
    def wipe(self, work: Work) -> None: ...


class ModelDrafter:
    """Drafts chains with second-best leaves, all contexts in step."""

    def __init__(self, name: str, guesser: Guesser, max_context: int, reads_state: bool = False) -> None:
        self.name = name
        self.reads_state = reads_state  # of the target, sent along with jobs
        self._guesser = guesser
        self._max_context = max_context
        self._sequences: OrderedDict[str, Sequence] = OrderedDict()

    def draft(self, contexts: Listed[Context]) -> list[Draft]:
        """One draft a context; none for a context too long for the model or its cache."""
        lanes = [_Lane(c, self._align(c)) for c in contexts if len(c.tokens) + c.max_draft_tokens <= self._max_context]
        self._read(lanes)
        active = lanes
        while active:
            depth = min(lane.room for lane in active)
            works = self._works(active, ahead=depth - 1)
            found = self._guess([work for _, work in works], depth)
            for (lane, work), guesses in zip(works, found, strict=True) if found else ():
                lane.take(work, guesses)
            active = [lane for lane, _ in works if found and not lane.is_done]
        return [lane.draft(self.name) for lane in lanes if lane.tokens]

    def observe(self, context: Context) -> None:
        """Nothing to learn: the weights stand."""

    def forget(self, request_id: str) -> None:
        """Give the sequence's cache back."""
        sequence = self._sequences.pop(request_id, None)
        if sequence is not None:
            self._guesser.release(sequence)

    def _align(self, context: Context) -> Sequence:
        """The context's cached sequence, rolled back to what it shares with the committed tokens."""
        sequence = self._sequences.get(context.request_id)
        if sequence is None:
            sequence = self._sequences[context.request_id] = Sequence(_record(context), [])
        self._sequences.move_to_end(context.request_id)
        if len(self._sequences) > MAX_SEQUENCES:
            self.forget(next(iter(self._sequences)))
        known, tokens = sequence.tokens, context.tokens
        shared = min(sequence.cached, len(tokens) - 1)
        if known[:shared] != tokens[:shared]:
            shared = next(i for i in range(shared) if known[i] != tokens[i])
        sequence.cached = shared
        sequence.tokens = list(tokens)
        sequence.state = context.state
        return sequence

    def _read(self, lanes: list["_Lane"]) -> None:
        """Read long unread prefixes chunk by chunk, up to a last piece that the first guess takes along."""
        for lane in lanes:
            sequence = lane.sequence
            while len(sequence.tokens) - sequence.cached > CHUNK_TOKENS:
                chunk = sequence.tokens[sequence.cached : sequence.cached + CHUNK_TOKENS]
                work = Work(sequence, sequence.cached, chunk, Tree(), final=False)
                if not self._try_reserve(work, lanes, ahead=0) or not self._guess([work], 1):
                    break
                sequence.cached += len(chunk)

    def _guess(self, works: list[Work], depth: int) -> list[list[Guess]]:
        """The model's guesses; none at all, and the caches given up, if what it computed is no numbers."""
        try:
            return self._guesser.guess(works, depth, MIN_SURVIVAL) if works else []
        except ArithmeticError as error:
            log.warning("drafter %s: %s", self.name, error)
            for work in works:
                self._guesser.wipe(work)
                self.forget(work.sequence.record.id)
            return []

    def _works(self, lanes: list["_Lane"], ahead: int) -> list[tuple["_Lane", Work]]:
        """The next step of all lanes that have read their prefix and get their pages, for `ahead` steps more too."""
        works = []
        for lane in lanes:
            s = lane.sequence
            if len(s.tokens) - s.cached <= CHUNK_TOKENS:
                works.append((lane, Work(s, s.cached, s.tokens[s.cached :], Tree(), final=True)))
        return [(lane, work) for lane, work in works if self._try_reserve(work, lanes, ahead)]

    def _try_reserve(self, work: Work, lanes: list["_Lane"], ahead: int) -> bool:
        """Get a work's pages. Sequences that are in no lane lose their cache first, the longest idle before others;
        if that is not enough the work's own sequence does, so that at least the other lanes get on."""
        busy = {lane.sequence.record.id for lane in lanes}
        while not self._guesser.try_reserve(work, ahead):
            idle = next((i for i, s in self._sequences.items() if i not in busy and s.pages), None)
            self.forget(work.sequence.record.id if idle is None else idle)
            if idle is None:
                return False
        return True


class _Lane:
    """One context on its way through a drafting round."""

    def __init__(self, context: Context, sequence: Sequence) -> None:
        self.context = context
        self.sequence = sequence
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.confidences: list[float] = []
        self.depth = 0
        self._tip = 0  # node the next guess hangs below
        self._survival = 1.0

    @property
    def room(self) -> int:
        """Tokens it may still guess."""
        return self.context.max_draft_tokens - self.depth

    @property
    def is_done(self) -> bool:
        return self.room <= 0 or self._survival < MIN_SURVIVAL

    def take(self, work: Work, guesses: list[Guess]) -> None:
        """Append guesses as far as they are likely enough; the sequence goes on with them. The cache holds the work's
        tokens and every guess but the last."""
        self.sequence.cached = work.start + len(work.tokens)
        self.sequence.state = None  # it spoke of the last committed token, not of a guess
        for i, guess in enumerate(guesses):
            if self.is_done:
                break
            self.sequence.cached += int(i > 0)
            self._append(guess)

    def _append(self, guess: Guess) -> None:
        parent = self._tip
        self._add(guess.token, parent, guess.confidence)
        self._tip = len(self.tokens)
        if guess.second_confidence >= MIN_SECOND:
            self._add(guess.second, parent, guess.second_confidence)
        self.depth += 1
        self._survival *= guess.confidence
        self.sequence.tokens.append(guess.token)

    def draft(self, drafter: str) -> Draft:
        return Draft(
            request_id=self.context.request_id,
            base=len(self.context.tokens),
            drafter=drafter,
            tokens=tuple(self.tokens),
            parents=tuple(self.parents),
            confidences=tuple(self.confidences),
        )

    def _add(self, token: int, parent: int, confidence: float) -> None:
        self.tokens.append(token)
        self.parents.append(parent)
        self.confidences.append(min(1.0, max(0.0, confidence)))


def _record(context: Context) -> Record:
    """The drafter's cache rides on the same sequence state as the target's, which wants a record."""
    return Record(
        id=context.request_id,
        tenant=context.tenant,
        prompt_ids=tuple(context.tokens[: context.prompt_length]),
        max_tokens=1,
        eos_ids=(),
        sampling=context.sampling,
        speculation=Speculation(),
        created_s=0.0,
    )

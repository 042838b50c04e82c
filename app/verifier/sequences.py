"""Hold the sequences that a verifier runs, from a snapshot to their end: memory and suspects."""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from operator import attrgetter

import msgspec

from app.answer_form import Thinking
from app.engine.target import Target
from app.engine.text.call_syntax import END_OF_THINK, THINK
from app.engine.text.least_tokens import LeastTokens
from app.engine.text.most_thinking import MostThinking
from app.engine.text.stop_strings import StopWatch
from app.engine.text.tokenizer import Tokenizer
from app.state import BatchEntry, CachedSequence, Grammar, Sequence
from app.store.protocol import Snapshot
from app.verifier.memory import reserve
from app.verifier.stats import VerifierStats


class Sequences(Mapping[str, Sequence]):
    """Map each request to its sequence. For one thread, except `all`."""

    def __init__(
        self, target: Target, stats: VerifierStats, tokenizer: Tokenizer | None = None, max_running: int = 64
    ) -> None:
        """At most `max_running` work at once. A tokenizer is needed for all but free texts."""
        self._target = target
        self._stats = stats
        self._tokenizer = tokenizer
        self._max_running = max_running
        self._by_request: dict[str, Sequence] = {}
        self._oldest: list[Sequence] | None = None  # by age; None: they have changed
        self._ended: dict[str, list[int]] = {}  # tokens of the sequences that the last step ended
        self._suspects: set[str] = set()

    def __getitem__(self, request_id: str) -> Sequence:
        return self._by_request[request_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_request)

    def __len__(self) -> int:
        return len(self._by_request)

    def find(self, request_id: str) -> Sequence | None:
        return self._by_request.get(request_id)

    def all(self) -> list[Sequence]:
        """Copy the sequences; for any thread."""
        return [*self._by_request.values()]

    def oldest(self) -> list[Sequence]:
        """Return the sequences that may run, the oldest first; those that are over only wait for their commit."""
        if self._oldest is None:
            self._oldest = sorted(self._by_request.values(), key=attrgetter("age"))
        return [s for s in self._oldest[: self._max_running] if not s.is_over]

    def tokens(self, request_id: str) -> list[int] | None:
        """Return a sequence's list of tokens, also if it ended in the last step."""
        sequence = self._by_request.get(request_id)
        return self._ended.get(request_id) if sequence is None else sequence.tokens

    @property
    def suspects(self) -> AbstractSet[str]:
        """Return the requests that may make a step fail: each runs alone until it commits."""
        return self._suspects

    def suspect(self, request_id: str) -> None:
        self._suspects.add(request_id)

    def clear(self, request_ids: Iterable[str]) -> None:
        self._suspects.difference_update(request_ids)

    def start(self, snapshot: Snapshot) -> None:
        """Run a request from what is committed; one taken from a dead verifier is a suspect."""
        record = snapshot.record
        tokens = [*record.prompt_ids, *snapshot.tokens]
        self._stats.record_adopted(record, len(tokens), is_new=not snapshot.tokens)
        tokenizer = self._tokenizer
        grammar: Grammar | None = None
        stops = StopWatch(tokenizer, record.stop) if tokenizer is not None and record.stop else None
        if tokenizer is not None and record.grammar is not None:
            grammar = tokenizer.grammars.state(record.grammar, tokenizer.prefix_ids(record.prefix))
        if tokenizer is not None and record.min_tokens:
            grammar = LeastTokens(record.min_tokens, record.eos_ids, tokenizer.vocab_size, grammar)
        if tokenizer is not None and record.most_thinking is not None:
            begin = None if record.thinking is Thinking.INSIDE else tokenizer.token_of(THINK)
            end = tokenizer.token_of(END_OF_THINK)
            assert end is not None  # else it was refused
            grammar = MostThinking(record.most_thinking, begin, end, tokenizer.vocab_size, grammar)
        kv = CachedSequence.of(record, tokens)
        self._by_request[record.id] = Sequence(
            record, kv, snapshot.stats, stops, grammar, last_token_s=snapshot.stats.last_token_s
        )
        self._oldest = None
        if snapshot.strikes:
            self._suspects.add(record.id)

    def stop(self, request_id: str) -> Sequence | None:
        sequence, self._oldest = self._by_request.pop(request_id, None), None
        if sequence is not None:
            self._ended[request_id] = sequence.tokens
            self._target.release(sequence.kv)
        self._suspects.discard(request_id)
        return sequence

    def adopt_prefixes(self, sequences: Iterable[Sequence]) -> None:
        """Let prompts reuse the cached prefixes of other sequences."""
        self._ended.clear()
        for sequence in sequences:
            reused = 0 if sequence.is_scored else self._target.adopt(sequence.kv)
            if reused:
                self._stats.record_reused(reused)
                if not sequence.generated:
                    sequence.stats = msgspec.structs.replace(sequence.stats, reused=reused)

    def reserve(self, entries: list[BatchEntry]) -> list[BatchEntry]:
        return reserve(entries, self._target, self._by_request)

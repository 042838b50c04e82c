"""Record real drafts: every model drafter's guesses after every token of the target's own texts,
and the costs.

The text never depends on drafts (design D1), so such a log holds all that any way of routing,
fusing, cutting and scheduling them can lead to. Model-free drafters (lookup, suffix, phrases) are
not in it: they cost next to nothing, so a replay runs them. Knows nothing of replays.
"""

import gzip
import random
import time
from collections.abc import Mapping
from collections.abc import Sequence as Listed
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict

from app.assembly.drafter import AnyGuesser
from app.assembly.local import Models, build_local
from app.config import Settings
from app.drafter.draft_kv import DraftKV
from app.request import GenerateRequest, Sampling, SpeculationBounds
from app.stages.draft.protocol import Context
from app.state import Guess
from bench.stats import median

DEPTH = 8
BATCHES = (1, 2, 4, 8, 16)  # sequences at once, for which drafting is timed
TIMED = 12  # calls for each
MOST_AT_ONCE = 256  # sequences that a stated drafter guesses for in the time of one
READS = 64  # tokens of a prompt that it reads in the time of a guess


class Base(BaseModel):
    """A frozen record of a log."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Text(Base):
    """A prompt, and the target's own text after it, as token ids."""

    domain: str
    prompt_ids: tuple[int, ...]
    tokens: tuple[int, ...]


class DrafterLog(Base):
    """A drafter's guesses and costs.

    `guesses[text][i]`: its chain after the text's first i tokens, with the target's state if it
    reads that.
    """

    guesses: tuple[tuple[tuple[Guess, ...], ...], ...]
    token_s: dict[int, float]  # seconds of one more guess by sequences at once
    read_s: float = 0.0  # seconds of reading one token of a prompt
    context_s: float = 0.0  # seconds that one cached token of any sequence adds to each guess


class Log(Base):
    """A recording: the target's texts and costs, and every model drafter's guesses.

    `target`: the folder of the model whose embedding tells how near a guess came, for CoSine's routing. It is not
    recorded: a replay names it. None: only equal tokens agree.
    """

    costs: str  # the target's StepCosts as JSON
    vocab_size: int
    texts: tuple[Text, ...]
    drafters: dict[str, DrafterLog]
    target: Path | None = None

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read a recording, JSON packed by gzip. Raises OSError, pydantic.ValidationError."""
        with gzip.open(file, "rt") as packed:
            return cls.model_validate_json(packed.read())

    def write(self, file: Path) -> None:
        """Write the recording. Raises OSError."""
        with gzip.open(file, "wt") as packed:
            packed.write(self.model_dump_json())


def lengthened(log: Log, tokens: Listed[int], seed: int) -> Log:
    """Return the recording with longer prompts: every other one has so many random tokens before it, in turn.

    Texts and guesses stay as recorded, so this is for what prompts take, not for what is drafted.
    """
    random_ids, texts = random.Random(seed), list(log.texts)
    for i, text in list(enumerate(texts))[1::2]:
        before = [random_ids.randrange(log.vocab_size) for _ in range(tokens[i // 2 % len(tokens)])]
        texts[i] = text.model_copy(update={"prompt_ids": (*before, *text.prompt_ids)})
    return log.model_copy(update={"texts": tuple(texts)})


def repeated(log: Log, times: int) -> Log:
    """Return the recording with every text so many times: a run in which what is learnt first counts for less."""
    drafters = {name: own.model_copy(update={"guesses": own.guesses * times}) for name, own in log.drafters.items()}
    return log.model_copy(update={"texts": log.texts * times, "drafters": drafters})


def with_stated_drafters(log: Log, token_s: float) -> Log:
    """Return the recording with drafters that take `token_s` for a guess in any batch: bound by reading their weights.

    Reading a prompt's token takes a READS-th of it.
    """
    costs = {"token_s": dict.fromkeys((1, MOST_AT_ONCE), token_s), "read_s": token_s / READS}
    stated = {name: own.model_copy(update=costs) for name, own in log.drafters.items()}
    return log.model_copy(update={"drafters": stated})


def record(settings: Settings, models: Models, prompts: Mapping[str, Listed[str]], max_tokens: int) -> Log:
    """Have the target generate its texts and every model drafter guess at them."""
    texts, states = _texts(settings, models, prompts, max_tokens)
    drafters = {name: _drafter(name, guesser, texts, states) for name, guesser in models.guessers.items()}
    return Log(costs=models.costs, vocab_size=models.tokenizer.vocab_size, texts=tuple(texts), drafters=drafters)


States = list[list[bytes | None]]  # [text][i]: the target's state where it chose the text's i-th token


def _texts(
    settings: Settings, models: Models, prompts: Mapping[str, Listed[str]], max_tokens: int
) -> tuple[list[Text], States]:
    pipeline = build_local(settings, models)
    sequences = pipeline.verifier.sequences
    asked = [(domain, prompt) for domain, of_domain in prompts.items() for prompt in of_domain]
    off = SpeculationBounds(enabled=False)
    requests = [GenerateRequest(prompt=prompt, max_tokens=max_tokens, speculation=off) for _, prompt in asked]
    records = [pipeline.submit(request, settings) for request in requests]
    seen: dict[str, dict[int, bytes | None]] = {record.id: {} for record in records}
    while sequences:
        pipeline.step()
        for request_id, sequence in sequences.items():
            seen[request_id][sequence.generated] = sequence.kv.state
    ends = [pipeline.store.snapshot(record.id) for record in records]
    texts = [
        Text(domain=domain, prompt_ids=end.record.prompt_ids, tokens=end.tokens)
        for (domain, _), end in zip(asked, ends, strict=True)
    ]
    states = [
        [seen[record.id].get(i) for i in range(len(text.tokens))] for record, text in zip(records, texts, strict=True)
    ]
    return texts, states


def _drafter(name: str, guesser: AnyGuesser, texts: Listed[Text], states: States) -> DrafterLog:
    draft_kv = DraftKV(name, guesser, guesser.max_context)
    read_s = _reading(draft_kv, texts)
    guesses = _guesses(draft_kv, texts, states)
    token_s = {batch: _token_s(draft_kv, texts[:batch], states) for batch in BATCHES if batch <= len(texts)}
    for i in range(len(texts)):
        draft_kv.remove(str(i))
    return DrafterLog(guesses=guesses, token_s=token_s, read_s=read_s)


def _guesses(draft_kv: DraftKV, texts: Listed[Text], states: States) -> tuple[tuple[tuple[Guess, ...], ...], ...]:
    """Guess in all texts at once, which is faster; return guesses[text][i]."""
    found: list[list[tuple[Guess, ...]]] = [[()] for _ in texts]  # no drafter guesses before the first token
    for at in range(1, max(len(text.tokens) for text in texts)):
        ids = [_align(draft_kv, i, text, states, at) for i, text in enumerate(texts) if at < len(text.tokens)]
        guessed = draft_kv.guess(ids, DEPTH, 0.0)
        for request_id in ids:
            found[int(request_id)].append(tuple(guessed.get(request_id, ())))
    return tuple(map(tuple, found))


def _token_s(draft_kv: DraftKV, texts: Listed[Text], states: States) -> float:
    """Return the seconds of one more guess for these texts at once, next to nothing unread."""
    taken = []
    for at in range(2, 2 + TIMED):
        ids = [_align(draft_kv, i, text, states, min(at, len(text.tokens) - 1)) for i, text in enumerate(texts)]
        started = time.perf_counter()
        guessed = draft_kv.guess(ids, DEPTH, 0.0)
        taken.append((time.perf_counter() - started) / max(1, *map(len, guessed.values())))
    return median(taken)


def _reading(draft_kv: DraftKV, texts: Listed[Text]) -> float:
    """Return the seconds of reading one token of a prompt that is read whole."""
    taken = []
    for i, text in enumerate(texts[:TIMED]):
        draft_kv.align(_context(i, text, 0, None), [*text.prompt_ids])
        started = time.perf_counter()
        draft_kv.guess([str(i)], 1, 0.0)
        taken.append((time.perf_counter() - started) / len(text.prompt_ids))
    return median(taken)


def _align(draft_kv: DraftKV, i: int, text: Text, states: States, at: int) -> str:
    context = _context(i, text, at, states[i][at])
    draft_kv.align(context, context.tokens)
    return context.request_id


def _context(i: int, text: Text, at: int, state: bytes | None) -> Context:
    tokens = [*text.prompt_ids, *text.tokens[:at]]
    return Context(str(i), "public", tokens, len(text.prompt_ids), DEPTH, Sampling(seed=0), state=state)

"""Grow one text of a call: from tokens to certain text and its log-probabilities."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import accumulate

from app.answer_form import Thinking
from app.engine.text.answer_parts import CallPart, PartStream
from app.engine.text.detokenizer import TextStream
from app.engine.text.stop_strings import AnswerStream
from app.engine.text.tokenizer import Tokenizer
from app.messages import FinishReason, Record, Stats
from app.request import TokenLogprobs
from app.store.protocol import Snapshot
from web.openai.responses import Reason

REASONS: dict[FinishReason, Reason] = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}


class Echo(Enum):
    """Whether a text begins with its prompt."""

    NO = "no"
    BOTH = "both"
    PROMPT = "prompt"  # it is nothing else


@dataclass(frozen=True, slots=True)
class Spoken:
    start: int
    token: int
    logprobs: TokenLogprobs | None  # None: of a prompt's first token


@dataclass(frozen=True, slots=True)
class Part:
    """Text and the tokens that begin in it. `calls` and `reasoning`: what was text of them, and is not in `text`."""

    text: str
    spoken: list[Spoken]
    reasoning: str = ""
    calls: Sequence[CallPart] = ()
    tokens: Sequence[int] = ()  # that were committed
    drafts: Sequence[tuple[int, int]] = ()  # draft tokens verified and accepted, of each round that had some

    def __bool__(self) -> bool:
        return bool(self.text or self.spoken or self.reasoning or self.calls)


@dataclass(frozen=True, slots=True)
class Ending:
    reason: Reason
    stop: str | None = None  # the stop string that ended it


class GrowingText:
    def __init__(self, tokenizer: Tokenizer, record: Record) -> None:
        self._answer = AnswerStream(tokenizer, record.stop)
        self._parts: PartStream | None = None
        if record.calls or record.thinking is not Thinking.NO:
            self._parts = PartStream.of(record, tokenizer)
        self._waiting: list[Spoken] = []
        self._has_calls = False
        self._stats = Stats()

    def take(
        self,
        tokens: Sequence[int],
        logprobs: Sequence[TokenLogprobs],
        stats_after: Sequence[Stats] = (),
        *,
        is_end: bool,
    ) -> Part:
        text = ""
        for i, token in enumerate(tokens):
            if logprobs:
                self._waiting.append(Spoken(self._answer.read, token, logprobs[i]))
            text += self._answer.feed([token])
        if is_end:
            text += self._answer.flush()
        is_whole = is_end and self._answer.stopped_by is None  # the token that ends it has no text
        ready = [one for one in self._waiting if is_whole or one.start < self._answer.shown]
        self._waiting = self._waiting[len(ready) :]
        drafts = [*self._drafts(stats_after)]
        if self._parts is None:
            return Part(text, ready, tokens=tokens, drafts=drafts)
        parts = self._parts.feed(text, is_end=is_end)
        self._has_calls = self._has_calls or bool(parts.calls)
        return Part(parts.content, ready, parts.reasoning, parts.calls, tokens, drafts)

    def _drafts(self, stats_after: Sequence[Stats]) -> Iterator[tuple[int, int]]:
        for stats in stats_after:
            if stats.drafted > self._stats.drafted:
                yield stats.drafted - self._stats.drafted, stats.accepted - self._stats.accepted
            self._stats = stats

    def ending(self, reason: FinishReason | None) -> Ending:
        """Name the end as OpenAI does."""
        found = REASONS[reason or FinishReason.STOP]
        return Ending("tool_calls" if self._has_calls and found == "stop" else found, self._answer.stopped_by)


def echoed(tokenizer: Tokenizer, end: Snapshot, part: Part, echo: Echo) -> Part:
    """Put an ended request's prompt before its text, or in its place."""
    if echo is Echo.NO:
        return part
    ids = end.record.prompt_ids
    stream = TextStream(tokenizer)
    pieces = stream.pieces(ids)
    text = "".join(pieces) + stream.flush()
    starts = accumulate(map(len, pieces), initial=0)
    scores = (None, *end.prompt_logprobs) if end.record.prompt_logprobs is not None else ()
    spoken = [Spoken(*one) for one in zip(starts, ids, scores, strict=False)]
    if echo is Echo.PROMPT:
        return Part(text, spoken)
    moved = [Spoken(len(text) + one.start, one.token, one.logprobs) for one in part.spoken]
    return replace(part, text=text + part.text, spoken=[*spoken, *moved])


def spelled(tokenizer: Tokenizer, token: int) -> tuple[str, list[int] | None]:
    """Spell a token alone as OpenAI does, with its bytes, perhaps a part of a character."""
    if token in tokenizer.silent:
        return tokenizer.silent[token], None
    raw = tokenizer.grammars.bytes_of(token)
    if raw is None:
        return tokenizer.decode([token]), None
    try:
        return raw.decode(), list(raw)
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw), list(raw)

"""Grow one text of a call: from tokens to certain text and its log-probabilities."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.engine.text.stop_strings import AnswerStream
from app.engine.text.tokenizer import Tokenizer
from app.messages import FinishReason, Record
from app.request import TokenLogprobs
from web.openai.responses import Reason

REASONS: dict[FinishReason, Reason] = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}


@dataclass(frozen=True, slots=True)
class Spoken:
    start: int
    token: int
    logprobs: TokenLogprobs


@dataclass(frozen=True, slots=True)
class Part:
    """Text and the tokens that begin in it."""

    text: str
    spoken: list[Spoken]


class GrowingText:
    def __init__(self, tokenizer: Tokenizer, record: Record) -> None:
        self._answer = AnswerStream(tokenizer, record.stop)
        self._waiting: list[Spoken] = []

    def take(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs], *, is_end: bool) -> Part:
        text = ""
        for i, token in enumerate(tokens):
            if logprobs:
                self._waiting.append(Spoken(self._answer.read, token, logprobs[i]))
            text += self._answer.feed([token])
        if is_end:
            text += self._answer.flush()
        ready = [one for one in self._waiting if one.start < self._answer.shown]
        self._waiting = self._waiting[len(ready) :]
        return Part(text, ready)


def spelled(tokenizer: Tokenizer, token: int) -> tuple[str, list[int] | None]:
    """Spell a token alone as OpenAI does, with its bytes, perhaps a part of a character."""
    raw = tokenizer.grammars.bytes_of(token)
    if raw is None:
        return tokenizer.decode([token]), None
    try:
        return raw.decode(), list(raw)
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw), list(raw)

"""One of a call's texts as its tokens come: what is certain of it, and the log-probabilities that belong to that."""

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
    """A token of the text, and where in it it begins, in characters."""

    start: int
    token: int
    logprobs: TokenLogprobs


@dataclass(frozen=True, slots=True)
class Part:
    """What is new of a text. A token belongs to the part in which it begins; one that has no text, or that a stop
    string cut off, to none."""

    text: str
    spoken: list[Spoken]


class GrowingText:
    """The parts of a text. Together they are the text, however its tokens are cut into events."""

    def __init__(self, tokenizer: Tokenizer, record: Record) -> None:
        self._answer = AnswerStream(tokenizer, record.stop)
        self._waiting: list[Spoken] = []

    def take(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs], *, is_end: bool) -> Part:
        """What these tokens make certain; `logprobs` are theirs, or empty if nobody wants any."""
        text = ""
        for i, token in enumerate(tokens):
            if logprobs:
                self._waiting.append(Spoken(self._answer.read, token, logprobs[i]))
            text += self._answer.feed([token])
        if is_end:
            text += self._answer.flush()
        begun = [one for one in self._waiting if one.start < self._answer.shown]
        self._waiting = self._waiting[len(begun) :]
        return Part(text, begun)


def spelled(tokenizer: Tokenizer, token: int) -> tuple[str, list[int] | None]:
    """A token by itself as OpenAI writes it, and its bytes: some are only a part of a character."""
    raw = tokenizer.grammars.bytes_of(token)
    if raw is None:
        return tokenizer.decode([token]), None
    try:
        return raw.decode(), list(raw)
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw), list(raw)

"""Write a call's texts as a chat or a plain completion, whole or in chunks.

data: <chunk>        of several tokens at times; a character is never split
data: {"error": ...} the call failed, nothing follows
data: [DONE]
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import BaseModel

from app.engine.text.answer_parts import CallPart, calls_of
from app.engine.text.tokenizer import Tokenizer
from app.request import TokenLogprobs
from web.errors import v1_error_body
from web.openai.responses import (
    CallDelta,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatLogprobs,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    Delta,
    FunctionDelta,
    Message,
    Reason,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from web.openai.text_stream import Ending, Part, spelled

DONE = "data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Head:
    id: str
    created: int
    model: str
    system_fingerprint: str | None  # None where no verifier is alive yet
    tokenizer: Tokenizer
    top: int | None  # likeliest tokens wanted beside each; None: no log-probabilities

    def fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("id", "created", "model", "system_fingerprint")}


class ResponseWriter(Protocol):
    """Write one call. Frames are server-sent events, empty for nothing."""

    prefix: str  # of ids

    def whole(self, head: Head, texts: Sequence[tuple[Part, Ending]], usage: Usage) -> BaseModel: ...

    def begin(self, head: Head, texts: int, prompt: Usage) -> str:
        """Return the first frames. `prompt`: what is known of the usage."""
        ...

    def part(self, head: Head, index: int, part: Part) -> str: ...
    def end(self, head: Head, index: int, ending: Ending) -> str: ...
    def done(self, head: Head, usage: Usage) -> str: ...
    def failed(self, head: Head, message: str) -> str: ...


class _ChunkWriter(ABC):
    """OpenAI's frames of choices. `with_usage`: a last chunk with the usage; null in the others."""

    def __init__(self, *, with_usage: bool = False) -> None:
        self._with_usage = with_usage

    def begin(self, head: Head, texts: int, prompt: Usage) -> str:
        firsts = [first for i in range(texts) if (first := self._first(i)) is not None]
        return "".join(self._frame(head, [first]) for first in firsts) or ": \n\n"  # sent at once, with the headers

    def part(self, head: Head, index: int, part: Part) -> str:
        return self._frame(head, [self._part(head, index, part)]) if part else ""

    def end(self, head: Head, index: int, ending: Ending) -> str:
        return self._frame(head, [self._last(index, ending.reason)])

    def done(self, head: Head, usage: Usage) -> str:
        return (f"data: {self._chunk(head, [], usage=usage)}\n\n" if self._with_usage else "") + DONE

    def failed(self, head: Head, message: str) -> str:
        return f"data: {v1_error_body(500, message)}\n\n"

    def _frame(self, head: Head, choices: Sequence[BaseModel]) -> str:
        usage = {"usage": None} if self._with_usage else {}
        return f"data: {self._chunk(head, choices, **usage)}\n\n"

    def _first(self, index: int) -> BaseModel | None:
        return None

    @abstractmethod
    def _part(self, head: Head, index: int, part: Part) -> BaseModel: ...

    @abstractmethod
    def _last(self, index: int, reason: Reason) -> BaseModel: ...

    @abstractmethod
    def _chunk(self, head: Head, choices: Sequence[BaseModel], **usage: Usage | None) -> str: ...


class ChatWriter(_ChunkWriter):
    prefix = "chatcmpl-"

    def whole(self, head: Head, texts: Sequence[tuple[Part, Ending]], usage: Usage) -> BaseModel:
        choices = [
            ChatChoice(
                index=i, message=_message(part), logprobs=_chat_logprobs(head, part), finish_reason=ending.reason
            )
            for i, (part, ending) in enumerate(texts)
        ]
        return ChatCompletion(**head.fields(), choices=choices, usage=usage)

    def _first(self, index: int) -> BaseModel | None:
        return _chunk_choice(index, Delta(role="assistant", content=""))

    def _part(self, head: Head, index: int, part: Part) -> BaseModel:
        return _chunk_choice(index, _delta(part), logprobs=_chat_logprobs(head, part))

    def _last(self, index: int, reason: Reason) -> BaseModel:
        return _chunk_choice(index, Delta(), reason=reason)

    def _chunk(self, head: Head, choices: Sequence[BaseModel], **usage: Usage | None) -> str:
        made = ChatChunk(**head.fields(), object="chat.completion.chunk", choices=[*choices], **usage)
        return made.model_dump_json(exclude_unset=True)


class CompletionWriter(_ChunkWriter):
    prefix = "cmpl-"

    def whole(self, head: Head, texts: Sequence[tuple[Part, Ending]], usage: Usage) -> BaseModel:
        choices = [
            CompletionChoice(index=i, text=part.text, logprobs=_plain_logprobs(head, part), finish_reason=ending.reason)
            for i, (part, ending) in enumerate(texts)
        ]
        return Completion(**head.fields(), choices=choices, usage=usage)

    def _part(self, head: Head, index: int, part: Part) -> BaseModel:
        return CompletionChoice(index=index, text=part.text, logprobs=_plain_logprobs(head, part), finish_reason=None)

    def _last(self, index: int, reason: Reason) -> BaseModel:
        return CompletionChoice(index=index, text="", logprobs=None, finish_reason=reason)

    def _chunk(self, head: Head, choices: Sequence[BaseModel], **usage: Usage | None) -> str:
        made = Completion(**head.fields(), object="text_completion", choices=[*choices], **usage)
        return made.model_dump_json(exclude_unset=True)


def _message(part: Part) -> Message:
    calls = calls_of(part.calls)
    return Message(
        content=part.text if part.text or not calls else None,
        reasoning_content=part.reasoning or None,
        tool_calls=[*calls] or None,
    )


def _delta(part: Part) -> Delta:
    """Fields of nothing are left out, but for the content of a chunk that has nothing else."""
    fields: dict[str, Any] = {}
    if part.reasoning:
        fields["reasoning_content"] = part.reasoning
    if part.calls:
        fields["tool_calls"] = [_call_delta(one) for one in part.calls]
    if part.text or not fields:
        fields["content"] = part.text
    return Delta(**fields)


def _call_delta(part: CallPart) -> CallDelta:
    if part.name is None:
        return CallDelta(index=part.index, function=FunctionDelta(arguments=part.arguments))
    function = FunctionDelta(name=part.name, arguments=part.arguments)
    return CallDelta(index=part.index, id=part.id, type="function", function=function)


def _chunk_choice(
    index: int, delta: Delta, *, logprobs: ChatLogprobs | None = None, reason: Reason | None = None
) -> ChatChunkChoice:
    return ChatChunkChoice(index=index, delta=delta, logprobs=logprobs, finish_reason=reason)


def _chat_logprobs(head: Head, part: Part) -> ChatLogprobs | None:
    if head.top is None:
        return None
    content = [_token_logprob(head.tokenizer, one.token, one.logprobs) for one in part.spoken if one.logprobs]
    return ChatLogprobs(content=content, refusal=None)


def _token_logprob(tokenizer: Tokenizer, id_: int, logprobs: TokenLogprobs) -> TokenLogprob:
    token, raw = spelled(tokenizer, id_)
    top = []
    for other_id, logprob in logprobs.top:
        other, other_raw = spelled(tokenizer, other_id)
        top.append(TopLogprob(token=other, logprob=logprob, bytes=other_raw))
    return TokenLogprob(token=token, logprob=logprobs.logprob, bytes=raw, top_logprobs=top)


def _plain_logprobs(head: Head, part: Part) -> CompletionLogprobs | None:
    """Write parallel lists; as at OpenAI the committed token is among the likeliest, too."""
    if head.top is None:
        return None
    found = [one.logprobs and _token_logprob(head.tokenizer, one.token, one.logprobs) for one in part.spoken]
    top = [
        one and {one.token: one.logprob, **{other.token: other.logprob for other in one.top_logprobs}} for one in found
    ]
    return CompletionLogprobs(
        tokens=[spelled(head.tokenizer, one.token)[0] for one in part.spoken],
        token_logprobs=[one and one.logprob for one in found],
        top_logprobs=top if head.top else None,
        text_offset=[one.start for one in part.spoken],
    )

"""Write a call's texts as a chat or a plain completion, whole or in chunks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import BaseModel

from app.engine.text.answer_parts import CallPart, calls_of
from app.engine.text.tokenizer import Tokenizer
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
from web.openai.text_stream import Part, Spoken, spelled


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
    """Chunks are JSON, with `usage` if given: null but in the last one."""

    prefix: str  # of ids

    def whole(self, head: Head, texts: Sequence[tuple[Part, Reason]], usage: Usage) -> BaseModel: ...
    def first(self, index: int) -> BaseModel | None: ...
    def part(self, head: Head, index: int, part: Part) -> BaseModel: ...
    def last(self, index: int, reason: Reason) -> BaseModel: ...
    def chunk(self, head: Head, choices: Sequence[BaseModel], **usage: Usage | None) -> str: ...


class ChatWriter:
    prefix = "chatcmpl-"

    def whole(self, head: Head, texts: Sequence[tuple[Part, Reason]], usage: Usage) -> BaseModel:
        choices = [
            ChatChoice(index=i, message=_message(part), logprobs=_chat_logprobs(head, part), finish_reason=reason)
            for i, (part, reason) in enumerate(texts)
        ]
        return ChatCompletion(**head.fields(), choices=choices, usage=usage)

    def first(self, index: int) -> BaseModel | None:
        return _chunk_choice(index, Delta(role="assistant", content=""))

    def part(self, head: Head, index: int, part: Part) -> BaseModel:
        return _chunk_choice(index, _delta(part), logprobs=_chat_logprobs(head, part))

    def last(self, index: int, reason: Reason) -> BaseModel:
        return _chunk_choice(index, Delta(), reason=reason)

    def chunk(self, head: Head, choices: Sequence[BaseModel], **usage: Usage | None) -> str:
        made = ChatChunk(**head.fields(), object="chat.completion.chunk", choices=[*choices], **usage)
        return made.model_dump_json(exclude_unset=True)


class CompletionWriter:
    prefix = "cmpl-"

    def whole(self, head: Head, texts: Sequence[tuple[Part, Reason]], usage: Usage) -> BaseModel:
        choices = [
            CompletionChoice(index=i, text=part.text, logprobs=_plain_logprobs(head, part), finish_reason=reason)
            for i, (part, reason) in enumerate(texts)
        ]
        return Completion(**head.fields(), choices=choices, usage=usage)

    def first(self, index: int) -> BaseModel | None:
        return None

    def part(self, head: Head, index: int, part: Part) -> BaseModel:
        return CompletionChoice(index=index, text=part.text, logprobs=_plain_logprobs(head, part), finish_reason=None)

    def last(self, index: int, reason: Reason) -> BaseModel:
        return CompletionChoice(index=index, text="", logprobs=None, finish_reason=reason)

    def chunk(self, head: Head, choices: Sequence[BaseModel], **usage: Usage | None) -> str:
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
    return ChatLogprobs(content=[_token_logprob(head.tokenizer, one) for one in part.spoken], refusal=None)


def _token_logprob(tokenizer: Tokenizer, spoken: Spoken) -> TokenLogprob:
    token, raw = spelled(tokenizer, spoken.token)
    top = []
    for id_, logprob in spoken.logprobs.top:
        other, other_raw = spelled(tokenizer, id_)
        top.append(TopLogprob(token=other, logprob=logprob, bytes=other_raw))
    return TokenLogprob(token=token, logprob=spoken.logprobs.logprob, bytes=raw, top_logprobs=top)


def _plain_logprobs(head: Head, part: Part) -> CompletionLogprobs | None:
    """Write parallel lists; as at OpenAI the committed token is among the likeliest, too."""
    if head.top is None:
        return None
    found = [_token_logprob(head.tokenizer, one) for one in part.spoken]
    top = [{one.token: one.logprob, **{other.token: other.logprob for other in one.top_logprobs}} for one in found]
    return CompletionLogprobs(
        tokens=[one.token for one in found],
        token_logprobs=[one.logprob for one in found],
        top_logprobs=top if head.top else None,
        text_offset=[one.start for one in part.spoken],
    )

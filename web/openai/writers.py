"""Write a call's texts as a chat or a plain completion, whole or in chunks.

data: <chunk>        of several tokens at times; a character is never split
data: {"error": ...} the call failed, nothing follows
data: [DONE]
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import BaseModel

from app.engine.text.answer_parts import CallPart, calls_of
from app.engine.text.tokenizer import Tokenizer
from app.request import TokenLogprobs
from web.errors import v1_error_body
from web.openai.requests import Body
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
    Metrics,
    Reason,
    SpeculativeDecoding,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from web.openai.text_stream import Ending, Part, spelled

DONE = "data: [DONE]\n\n"
Spell = Callable[[Tokenizer, int], tuple[str, list[int] | None]]


@dataclass(frozen=True, slots=True)
class Head:
    id: str
    created: int
    model: str
    system_fingerprint: str | None  # None where no verifier is alive yet
    tokenizer: Tokenizer
    top: int | None  # likeliest tokens wanted beside each; None: no log-probabilities
    prompts: Sequence[Sequence[int]]  # of each text

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
    """OpenAI's frames of choices. With usage wanted it is in a last chunk, and null in the others."""

    def __init__(self, body: Body) -> None:
        self._with_usage, self._with_ids = body.with_usage, bool(body.return_token_ids)
        self._spell = _id_of if body.return_tokens_as_token_ids else spelled
        self._drafts: list[tuple[int, int]] = []

    def begin(self, head: Head, texts: int, prompt: Usage) -> str:
        return ": \n\n"  # sent at once, with the headers

    def part(self, head: Head, index: int, part: Part) -> str:
        self._drafts += part.drafts
        if not part and not (self._with_ids and part.tokens):
            return ""
        return self._frame(head, [self._part(head, index, part)])

    def end(self, head: Head, index: int, ending: Ending) -> str:
        return self._frame(head, [self._last(index, ending.reason)])

    def done(self, head: Head, usage: Usage) -> str:
        if not self._with_usage:
            return DONE
        metrics = _metrics(head, self._drafts)
        more = {} if metrics is None else {"metrics": metrics}
        return f"data: {self._chunk(head, [], usage=usage, **more)}\n\n{DONE}"

    def failed(self, head: Head, message: str) -> str:
        return f"data: {v1_error_body(500, message)}\n\n"

    def _frame(self, head: Head, choices: Sequence[BaseModel], **rest: Any) -> str:
        usage = {"usage": None} if self._with_usage else {}
        return f"data: {self._chunk(head, choices, **usage, **rest)}\n\n"

    def _ids(self, **of: Sequence[int]) -> dict[str, Any]:
        return {name: [*ids] for name, ids in of.items()} if self._with_ids else {}

    @abstractmethod
    def _part(self, head: Head, index: int, part: Part) -> BaseModel: ...

    @abstractmethod
    def _last(self, index: int, reason: Reason) -> BaseModel: ...

    @abstractmethod
    def _chunk(self, head: Head, choices: Sequence[BaseModel], **rest: Any) -> str: ...


class ChatWriter(_ChunkWriter):
    prefix = "chatcmpl-"

    def whole(self, head: Head, texts: Sequence[tuple[Part, Ending]], usage: Usage) -> BaseModel:
        choices = [
            ChatChoice(
                index=i,
                message=_message(part),
                logprobs=self._logprobs(head, part),
                finish_reason=ending.reason,
                **self._ids(token_ids=part.tokens),
            )
            for i, (part, ending) in enumerate(texts)
        ]
        metrics = _metrics(head, texts[0][0].drafts)
        ids = self._ids(prompt_token_ids=head.prompts[0])
        return ChatCompletion(**head.fields(), choices=choices, usage=usage, metrics=metrics, **ids)

    def begin(self, head: Head, texts: int, prompt: Usage) -> str:
        first = self._ids(prompt_token_ids=head.prompts[0])
        delta = Delta(role="assistant", content="")
        return "".join(self._frame(head, [_chunk_choice(i, delta)], **first if i == 0 else {}) for i in range(texts))

    def _part(self, head: Head, index: int, part: Part) -> BaseModel:
        ids = self._ids(token_ids=part.tokens)
        return _chunk_choice(index, _delta(part), logprobs=self._logprobs(head, part), **ids)

    def _last(self, index: int, reason: Reason) -> BaseModel:
        return _chunk_choice(index, Delta(), reason=reason)

    def _chunk(self, head: Head, choices: Sequence[BaseModel], **rest: Any) -> str:
        made = ChatChunk(**head.fields(), object="chat.completion.chunk", choices=[*choices], **rest)
        return made.model_dump_json(exclude_unset=True)

    def _logprobs(self, head: Head, part: Part) -> ChatLogprobs | None:
        if head.top is None:
            return None
        content = [_token_logprob(head, self._spell, one.token, one.logprobs) for one in part.spoken if one.logprobs]
        return ChatLogprobs(content=content, refusal=None)


class CompletionWriter(_ChunkWriter):
    prefix = "cmpl-"

    def whole(self, head: Head, texts: Sequence[tuple[Part, Ending]], usage: Usage) -> BaseModel:
        choices = [
            self._choice(head, i, part, reason=ending.reason, prompt_token_ids=head.prompts[i])
            for i, (part, ending) in enumerate(texts)
        ]
        metrics = _metrics(head, texts[0][0].drafts)
        return Completion(**head.fields(), choices=choices, usage=usage, metrics=metrics)

    def begin(self, head: Head, texts: int, prompt: Usage) -> str:
        self._unsaid = {*range(texts)} if self._with_ids else set()
        return super().begin(head, texts, prompt)

    def _part(self, head: Head, index: int, part: Part) -> BaseModel:
        prompt = {"prompt_token_ids": head.prompts[index]} if index in self._unsaid else {}
        self._unsaid.discard(index)
        return self._choice(head, index, part, reason=None, **prompt)

    def _last(self, index: int, reason: Reason) -> BaseModel:
        return CompletionChoice(index=index, text="", logprobs=None, finish_reason=reason)

    def _chunk(self, head: Head, choices: Sequence[BaseModel], **rest: Any) -> str:
        made = Completion(**head.fields(), object="text_completion", choices=[*choices], **rest)
        return made.model_dump_json(exclude_unset=True)

    def _choice(
        self, head: Head, index: int, part: Part, *, reason: Reason | None, **prompt: Sequence[int]
    ) -> CompletionChoice:
        ids = self._ids(token_ids=part.tokens, **prompt)
        logprobs = _plain_logprobs(head, self._spell, part)
        return CompletionChoice(index=index, text=part.text, logprobs=logprobs, finish_reason=reason, **ids)


def _message(part: Part) -> Message:
    calls = calls_of(part.calls)
    return Message(
        content=part.text if part.text or not calls else None,
        reasoning_content=part.reasoning or None,
        reasoning=part.reasoning or None,
        tool_calls=[*calls] or None,
    )


def _delta(part: Part) -> Delta:
    """Fields of nothing are left out, but for the content of a chunk that has nothing else."""
    fields: dict[str, Any] = {}
    if part.reasoning:
        fields["reasoning_content"] = fields["reasoning"] = part.reasoning
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
    index: int,
    delta: Delta,
    *,
    logprobs: ChatLogprobs | None = None,
    reason: Reason | None = None,
    **ids: list[int],
) -> ChatChunkChoice:
    return ChatChunkChoice(index=index, delta=delta, logprobs=logprobs, finish_reason=reason, **ids)


def _metrics(head: Head, drafts: Sequence[tuple[int, int]]) -> Metrics | None:
    """Return None for several texts, as vLLM does, and where no draft token was verified."""
    if len(head.prompts) > 1 or not drafts:
        return None
    accepted = [right for _, right in drafts]
    drafted, right, rounds = sum(of for of, _ in drafts), sum(accepted), len(drafts)
    return Metrics(
        speculative_decoding=SpeculativeDecoding(
            mean_acceptance_length=1 + right / rounds,
            draft_acceptance_rate=right / drafted,
            acceptance_histogram=[accepted.count(count) for count in range(max(accepted) + 1)],
            num_spec_steps=rounds,
            num_accepted_draft_tokens=right,
            num_draft_tokens=drafted,
            num_spec_tokens=None,
        )
    )


def _id_of(tokenizer: Tokenizer, token: int) -> tuple[str, list[int] | None]:
    return f"token_id:{token}", spelled(tokenizer, token)[1]


def _token_logprob(head: Head, spell: Spell, id_: int, logprobs: TokenLogprobs) -> TokenLogprob:
    token, raw = spell(head.tokenizer, id_)
    top = []
    for other_id, logprob in logprobs.top:
        other, other_raw = spell(head.tokenizer, other_id)
        top.append(TopLogprob(token=other, logprob=logprob, bytes=other_raw))
    return TokenLogprob(token=token, logprob=logprobs.logprob, bytes=raw, top_logprobs=top)


def _plain_logprobs(head: Head, spell: Spell, part: Part) -> CompletionLogprobs | None:
    """Write parallel lists; as at OpenAI the committed token is among the likeliest, too."""
    if head.top is None:
        return None
    found = [one.logprobs and _token_logprob(head, spell, one.token, one.logprobs) for one in part.spoken]
    top = [
        one and {one.token: one.logprob, **{other.token: other.logprob for other in one.top_logprobs}} for one in found
    ]
    return CompletionLogprobs(
        tokens=[spell(head.tokenizer, one.token)[0] for one in part.spoken],
        token_logprobs=[one and one.logprob for one in found],
        top_logprobs=top if head.top else None,
        text_offset=[one.start for one in part.spoken],
    )

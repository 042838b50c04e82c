"""Write an answer as Anthropic's message, whole or as its events.

message_start, then for each block content_block_start, content_block_delta..., content_block_stop,
then message_delta with the reason, message_stop; or error
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from pydantic import BaseModel

from app.engine.text.answer_parts import calls_of
from web.api.sse import written_frame
from web.errors import messages_error_body
from web.openai.responses import Usage
from web.openai.text_stream import Ending, Part
from web.openai.writers import Head

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
REASONS: dict[str, StopReason] = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessageUsage(BaseModel):
    """Tokens; those of the prompt that the prefix cache had are counted apart."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    output_tokens: int


class MessageAnswer(BaseModel):
    """POST /v1/messages. Blocks are of type thinking, text and tool_use."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[dict[str, Any]]
    stop_reason: StopReason | None
    stop_sequence: str | None = None
    usage: MessageUsage


class TokenCount(BaseModel):
    """POST /v1/messages/count_tokens."""

    input_tokens: int


class MessageWriter:
    """For one call of one text."""

    prefix = "msg_"

    def __init__(self) -> None:
        self._block = -1  # index of the open or last block
        self._kind: tuple[str, int] | None = None  # of the open block: its type, and its call's index
        self._ending = Ending("stop")

    def whole(self, head: Head, texts: Sequence[tuple[Part, Ending]], usage: Usage) -> MessageAnswer:
        (part, ending), *_ = texts
        content: list[dict[str, Any]] = []
        if part.reasoning:
            content.append({"type": "thinking", "thinking": part.reasoning, "signature": ""})
        if part.text:
            content.append({"type": "text", "text": part.text})
        for call in calls_of(part.calls):
            content.append(_tool_use(call.id, call.function.name) | {"input": _object(call.function.arguments)})
        return _answer(head, content, _reason(ending), ending.stop, usage)

    def begin(self, head: Head, texts: int, prompt: Usage) -> str:
        return _frame("message_start", message=_answer(head, [], None, None, prompt).model_dump())

    def part(self, head: Head, index: int, part: Part) -> str:
        return "".join(self._frames(part))

    def end(self, head: Head, index: int, ending: Ending) -> str:
        self._ending = ending
        return "".join(self._close())

    def done(self, head: Head, usage: Usage) -> str:
        delta = {"stop_reason": _reason(self._ending), "stop_sequence": self._ending.stop}
        return _frame("message_delta", delta=delta, usage=_usage(usage).model_dump()) + _frame("message_stop")

    def failed(self, head: Head, message: str) -> str:
        return written_frame("error", messages_error_body(500, message))

    def _frames(self, part: Part) -> Iterator[str]:
        if part.reasoning:
            yield from self._open(("thinking", 0), {"type": "thinking", "thinking": "", "signature": ""})
            yield self._delta(type="thinking_delta", thinking=part.reasoning)
        if part.text:
            yield from self._open(("text", 0), {"type": "text", "text": ""})
            yield self._delta(type="text_delta", text=part.text)
        for call in part.calls:
            if call.name is not None:
                yield from self._open(("tool_use", call.index), _tool_use(call.id or "", call.name))
            if call.arguments:
                yield self._delta(type="input_json_delta", partial_json=call.arguments)

    def _open(self, kind: tuple[str, int], block: dict[str, Any]) -> Iterator[str]:
        if self._kind == kind:
            return
        yield from self._close()
        self._kind, self._block = kind, self._block + 1
        yield _frame("content_block_start", index=self._block, content_block=block)

    def _close(self) -> Iterator[str]:
        if self._kind is not None:
            self._kind = None
            yield _frame("content_block_stop", index=self._block)

    def _delta(self, **delta: str) -> str:
        return _frame("content_block_delta", index=self._block, delta=delta)


def _answer(
    head: Head, content: list[dict[str, Any]], reason: StopReason | None, stop: str | None, usage: Usage
) -> MessageAnswer:
    return MessageAnswer(
        id=head.id, model=head.model, content=content, stop_reason=reason, stop_sequence=stop, usage=_usage(usage)
    )


def _reason(ending: Ending) -> StopReason:
    return "stop_sequence" if ending.stop is not None and ending.reason == "stop" else REASONS[ending.reason]


def _usage(usage: Usage) -> MessageUsage:
    cached = usage.prompt_tokens_details.cached_tokens
    return MessageUsage(
        input_tokens=usage.prompt_tokens - cached,
        cache_read_input_tokens=cached,
        output_tokens=usage.completion_tokens,
    )


def _tool_use(id_: str, name: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": id_, "name": name, "input": {}}


def _object(arguments: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(arguments)
    except ValueError:  # cut off by max_tokens
        return {}
    return found


def _frame(kind: str, **fields: Any) -> str:
    return written_frame(kind, json.dumps({"type": kind, **fields}, ensure_ascii=False))

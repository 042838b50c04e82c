"""Write an answer as a response of items, whole or as its events, which are numbered.

response.created, response.in_progress, then for each item response.output_item.added, what its kind has,
response.output_item.done, then response.completed or response.incomplete; or response.failed
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from pydantic import BaseModel

from web.api.sse import written_frame
from web.openai.responses import Usage
from web.openai.text_stream import Ending, Part
from web.openai.writers import Head
from web.responses.requests import ResponsesBody


class CachedTokens(BaseModel):
    cached_tokens: int


class ReasoningTokens(BaseModel):
    """Of the output; they are not counted apart."""

    reasoning_tokens: int = 0


class ResponseUsage(BaseModel):
    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens = ReasoningTokens()
    total_tokens: int


class ModelResponse(BaseModel):
    """POST /v1/responses. Items are of type reasoning, message and function_call."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    error: dict[str, str] | None = None
    incomplete_details: dict[str, str] | None = None
    instructions: str | None
    max_output_tokens: int | None
    model: str
    output: list[dict[str, Any]]
    parallel_tool_calls: bool
    previous_response_id: None = None
    store: Literal[False] = False
    temperature: float | None
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_p: float | None
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None
    metadata: dict[str, Any] = {}


class ItemWriter:
    """For one call of one text."""

    prefix = "resp_"

    def __init__(self, body: ResponsesBody) -> None:
        self._body = body
        self._number = -1  # of the last event
        self._items: list[dict[str, Any]] = []  # the last is open while `_is_open`
        self._is_open = False
        self._ending = Ending("stop")

    def whole(self, head: Head, texts: Sequence[tuple[Part, Ending]], usage: Usage) -> ModelResponse:
        (part, ending), *_ = texts
        self.part(head, 0, part)
        self.end(head, 0, ending)
        return self._response(head, self._status, usage)

    def begin(self, head: Head, texts: int, prompt: Usage) -> str:
        response = self._response(head, "in_progress", None).model_dump()
        return self._frame("response.created", response=response) + self._frame(
            "response.in_progress", response=response
        )

    def part(self, head: Head, index: int, part: Part) -> str:
        return "".join(self._frames(head, part))

    def end(self, head: Head, index: int, ending: Ending) -> str:
        self._ending = ending
        nothing = () if self._items else self._open("message", _message(head.id, 0))
        return "".join((*nothing, *self._close()))

    def done(self, head: Head, usage: Usage) -> str:
        status = self._status
        return self._frame(f"response.{status}", response=self._response(head, status, usage).model_dump())

    def failed(self, head: Head, message: str) -> str:
        response = self._response(head, "failed", None).model_dump()
        return self._frame(
            "response.failed", response=response | {"error": {"code": "server_error", "message": message}}
        )

    @property
    def _status(self) -> Literal["completed", "incomplete"]:
        return "incomplete" if self._ending.reason == "length" else "completed"

    def _frames(self, head: Head, part: Part) -> Iterator[str]:
        if part.reasoning:
            yield from self._open("reasoning", _reasoning(head.id, len(self._items)))
            yield self._of_item("response.reasoning_text.delta", delta=part.reasoning, content_index=0)
            self._items[-1]["content"][0]["text"] += part.reasoning
        if part.text:
            yield from self._open("message", _message(head.id, len(self._items)))
            yield self._of_item("response.output_text.delta", delta=part.text, content_index=0, logprobs=[])
            self._items[-1]["content"][0]["text"] += part.text
        for call in part.calls:
            if call.name is not None:
                item = _function_call(head.id, len(self._items), call.id or "", call.name)
                yield from self._open("function_call", item, is_new=True)
            if call.arguments:
                yield self._of_item("response.function_call_arguments.delta", delta=call.arguments)
                self._items[-1]["arguments"] += call.arguments

    def _open(self, kind: str, item: dict[str, Any], *, is_new: bool = False) -> Iterator[str]:
        if self._is_open and self._items[-1]["type"] == kind and not is_new:
            return
        yield from self._close()
        self._items.append(item)
        self._is_open = True
        yield self._frame("response.output_item.added", output_index=len(self._items) - 1, item=item)
        if kind != "function_call":
            part = _output_text("") if kind == "message" else _thought("")
            item["content"] = [part]
            yield self._of_item("response.content_part.added", content_index=0, part=part)

    def _close(self) -> Iterator[str]:
        if not self._is_open:
            return
        self._is_open = False
        item = self._items[-1]
        if item["type"] == "function_call":
            name, arguments = item["name"], item["arguments"]
            yield self._of_item("response.function_call_arguments.done", name=name, arguments=arguments)
        else:
            (part,) = item["content"]
            kind = "output_text" if item["type"] == "message" else "reasoning_text"
            rest: dict[str, Any] = {"logprobs": []} if item["type"] == "message" else {}
            yield self._of_item(f"response.{kind}.done", content_index=0, text=part["text"], **rest)
            yield self._of_item("response.content_part.done", content_index=0, part=part)
        if "status" in item:
            item["status"] = self._status
        yield self._frame("response.output_item.done", output_index=len(self._items) - 1, item=item)

    def _of_item(self, kind: str, **fields: Any) -> str:
        return self._frame(kind, item_id=self._items[-1]["id"], output_index=len(self._items) - 1, **fields)

    def _frame(self, kind: str, **fields: Any) -> str:
        self._number += 1
        data = {"type": kind, "sequence_number": self._number, **fields}
        return written_frame(kind, json.dumps(data, ensure_ascii=False))

    def _response(
        self, head: Head, status: Literal["in_progress", "completed", "incomplete", "failed"], usage: Usage | None
    ) -> ModelResponse:
        body = self._body
        choice = body.tool_choice or "auto"
        form = body.text.format if body.text is not None and body.text.format is not None else None
        return ModelResponse(
            id=head.id,
            created_at=head.created,
            status=status,
            incomplete_details={"reason": "max_output_tokens"} if status == "incomplete" else None,
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            model=head.model,
            output=self._items,
            parallel_tool_calls=body.parallel_tool_calls is not False,
            temperature=body.temperature,
            text={"format": {"type": "text"} if form is None else form.model_dump(by_alias=True)},
            tool_choice=choice if isinstance(choice, str) else choice.model_dump(),
            tools=[one.model_dump() for one in body.tools or ()],
            top_p=body.top_p,
            usage=None if usage is None else _usage(usage),
        )


def _usage(usage: Usage) -> ResponseUsage:
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=CachedTokens(cached_tokens=usage.prompt_tokens_details.cached_tokens),
        output_tokens=usage.completion_tokens,
        total_tokens=usage.total_tokens,
    )


def _reasoning(response: str, index: int) -> dict[str, Any]:
    return {"id": f"rs_{response}_{index}", "type": "reasoning", "summary": [], "content": []}


def _message(response: str, index: int) -> dict[str, Any]:
    fields = {"type": "message", "role": "assistant", "status": "in_progress", "content": []}
    return {"id": f"msg_{response}_{index}", **fields}


def _function_call(response: str, index: int, call_id: str, name: str) -> dict[str, Any]:
    fields = {"type": "function_call", "status": "in_progress", "call_id": call_id, "name": name, "arguments": ""}
    return {"id": f"fc_{response}_{index}", **fields}


def _output_text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _thought(text: str) -> dict[str, Any]:
    return {"type": "reasoning_text", "text": text}

"""Translate Anthropic's bodies to generate requests.

Fields without effect on a text are ignored: agents send new ones with every version. Images, documents and tools that
Anthropic runs itself are refused.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    JsonValue,
    StrictBool,
    ValidationError,
    field_validator,
)

from app.answer_form import Lenient
from app.errors import Unsupported
from app.request import GenerateRequest, Speculation, Temperature, TopK, TopP, no_booleans
from web.errors import InvalidBody
from web.openai.requests import given


class TextBlock(Lenient):
    type: Literal["text"]
    text: str


class ThinkingBlock(Lenient):
    type: Literal["thinking"]
    thinking: str


class ToolUseBlock(Lenient):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, JsonValue]


def _blocks(value: Any) -> Any:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


Texts = Annotated[list[TextBlock], BeforeValidator(_blocks, json_schema_input_type=str | list[TextBlock])]


class ToolResultBlock(Lenient):
    type: Literal["tool_result"]
    tool_use_id: str
    content: Texts = []


Block = Annotated[TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock, Field(discriminator="type")]


class MessageTurn(Lenient):
    role: Literal["user", "assistant", "system"]
    content: Annotated[list[Block], BeforeValidator(_blocks, json_schema_input_type=str | list[Block])]


class ClientTool(Lenient):
    """A function that the client runs."""

    type: Literal["custom"] | None = None
    name: str
    description: str | None = None
    input_schema: dict[str, JsonValue]


class ToolChoice(Lenient):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: StrictBool = False


class ThinkingWish(Lenient):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(None, ge=0)


class OutputFormat(Lenient):
    type: Literal["json_schema"]
    json_schema: dict[str, JsonValue] = Field(alias="schema")


class OutputConfig(Lenient):
    format: OutputFormat | None = None


class CountBody(Lenient):
    """POST /v1/messages/count_tokens."""

    model: str
    messages: list[MessageTurn] = Field(min_length=1)
    system: Texts = []
    tools: list[ClientTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingWish | None = Field(None, description="where the chat template can think")

    def request(self, **rest: Any) -> GenerateRequest:
        """Raises InvalidBody, Unsupported."""
        system = _text(self.system)
        turns = [{"role": "system", "content": system}] if system else []
        turns += [turn for one in self.messages for turn in _turns(one)]
        tools = [
            {"function": {"name": one.name, "description": one.description, "parameters": one.input_schema}}
            for one in self.tools or ()
        ]
        values: dict[str, Any] = {"messages": turns, "tools": tools, **rest}
        # A last message of the assistant is the begin of the answer.
        if turns[-1]["role"] == "assistant" and turns[-1].get("content") and not turns[-1].get("tool_calls"):
            values["continue_final_message"] = True
        if self.tool_choice is not None:
            values["parallel_tool_calls"] = not self.tool_choice.disable_parallel_tool_use
            values["tool_choice"] = _choice(self.tool_choice)
        if self.thinking is not None:
            values["chat_template_kwargs"] = {"enable_thinking": self.thinking.type != "disabled"}
            values["thinking_token_budget"] = self.thinking.budget_tokens
        try:
            return GenerateRequest.model_validate(values)
        except ValidationError as error:
            raise InvalidBody(error, NAMES) from error


NAMES = {"stop": "stop_sequences", "thinking_token_budget": "thinking.budget_tokens"}


class MessagesBody(CountBody):
    """POST /v1/messages."""

    max_tokens: int = Field(ge=1)
    stream: StrictBool = False
    stop_sequences: list[str] | None = None
    temperature: Temperature | None = Field(None, description="absent, the model's own, or 1")
    output_config: OutputConfig | None = Field(None, description="format: a JSON schema that the answer follows")
    top_p: TopP | None = None
    top_k: TopK | None = None
    speculation: Speculation | None = Field(None, description="Paceline's own; changes speed, never the text")

    _numbers = field_validator("max_tokens", "temperature", "top_p", "top_k", mode="before")(no_booleans)

    @property
    def n(self) -> int:
        return 1

    def requests(self, most_tokens: int, sampling: Mapping[str, float]) -> list[GenerateRequest]:
        values = {**sampling, **given(self, ("temperature", "top_p", "top_k", "speculation"))}
        if self.output_config is not None and self.output_config.format is not None:
            schema = self.output_config.format.json_schema
            values["response_format"] = {"type": "json_schema", "json_schema": {"schema": schema}}
        return [
            self.request(
                # agents ask for more than any answer needs
                max_tokens=min(self.max_tokens, most_tokens),
                stop=tuple(self.stop_sequences or ()),
                **values,
            )
        ]

    def names(self) -> dict[str, str]:
        return NAMES


def _turns(turn: MessageTurn) -> list[dict[str, Any]]:
    """Return a turn's messages: results of tools come before what else the user says."""
    texts = [one.text for one in turn.content if isinstance(one, TextBlock)]
    uses = [one for one in turn.content if isinstance(one, ToolUseBlock)]
    found: list[dict[str, Any]] = [
        {"role": "tool", "content": _text(one.content), "tool_call_id": one.tool_use_id}
        for one in turn.content
        if isinstance(one, ToolResultBlock)
    ]
    if turn.role != "assistant":
        if uses:
            raise Unsupported("messages", "only the assistant uses tools")
        return [*found, {"role": turn.role, "content": "\n".join(texts)}] if texts or not found else found
    message: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts)}
    if thoughts := [one.thinking for one in turn.content if isinstance(one, ThinkingBlock)]:
        message["reasoning_content"] = "\n".join(thoughts)
    if uses:
        message["tool_calls"] = [
            {"id": one.id, "function": {"name": one.name, "arguments": json.dumps(one.input, ensure_ascii=False)}}
            for one in uses
        ]
    return [*found, message]


def _text(content: list[TextBlock]) -> str:
    return "\n".join(one.text for one in content)


def _choice(choice: ToolChoice) -> Any:
    if choice.type == "tool":
        return {"function": {"name": choice.name or ""}}
    return "required" if choice.type == "any" else choice.type

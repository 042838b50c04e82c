"""Translate the bodies of the Responses API to generate requests.

Nothing is kept between calls: an earlier response cannot be named, its items are sent again.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    JsonValue,
    StrictBool,
    Tag,
    ValidationError,
    field_validator,
)

from app.answer_form import Lenient, NamedFunction
from app.request import GenerateRequest, Speculation, Temperature, TopP, no_booleans
from web.errors import InvalidBody
from web.openai.requests import Refused, given, refuse, saying_what_is_refused

NOTHING: tuple[JsonValue, ...] = (False, 0)
UNSUPPORTED = dict.fromkeys(("previous_response_id", "conversation", "background", "prompt", "top_logprobs"), NOTHING)


class Content(Lenient):
    type: Literal["input_text", "output_text", "text", "refusal", "summary_text", "reasoning_text"]
    text: str = ""


def _contents(value: Any) -> Any:
    return [{"type": "input_text", "text": value}] if isinstance(value, str) else value


Contents = Annotated[list[Content], BeforeValidator(_contents, json_schema_input_type=str | list[Content])]


class MessageItem(Lenient):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Contents


class CallItem(Lenient):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class ResultItem(Lenient):
    type: Literal["function_call_output"]
    call_id: str
    output: Contents


class ReasoningItem(Lenient):
    type: Literal["reasoning"]
    content: list[Content] | None = None


def _kind(item: Any) -> str:
    kind = item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", "message")
    return str(kind)


Item = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[ResultItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(_kind),
]


def _items(value: Any) -> Any:
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


class FunctionTool(Lenient):
    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, JsonValue] | None = None
    strict: StrictBool | None = None


class TextFormat(Lenient):
    type: Literal["text", "json_object", "json_schema"]
    name: str = "answer"
    description: str | None = None
    json_schema: dict[str, JsonValue] | None = Field(None, alias="schema")
    strict: StrictBool | None = None


class TextWish(Lenient):
    format: TextFormat | None = None


class Reasoning(Lenient):
    effort: str | None = None
    summary: JsonValue = None


class NamedChoice(NamedFunction):
    type: Literal["function"]


class ResponsesBody(BaseModel):
    """POST /v1/responses."""

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra=saying_what_is_refused(UNSUPPORTED))

    model: str
    input: Annotated[
        list[Item],
        Field(min_length=1),
        BeforeValidator(_items, json_schema_input_type=str | Annotated[list[Item], Field(min_length=1)]),
    ]
    instructions: str | None = Field(None, description="a system message before the input")
    max_output_tokens: int | None = Field(None, ge=1)
    temperature: Temperature | None = None
    top_p: TopP | None = None
    stream: StrictBool | None = False
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = None
    parallel_tool_calls: StrictBool | None = None
    text: TextWish | None = None
    reasoning: Reasoning | None = Field(None, description="effort: a variable of the chat template, if it has one")
    speculation: Speculation | None = Field(None, description="Paceline's own; changes speed, never the text")

    store: JsonValue = Field(None, description="taken and ignored: no response is kept")
    metadata: JsonValue = None
    user: JsonValue = None
    include: JsonValue = None
    service_tier: JsonValue = None
    truncation: JsonValue = None
    safety_identifier: JsonValue = None
    prompt_cache_key: JsonValue = None
    prompt_cache_retention: JsonValue = None
    max_tool_calls: JsonValue = None
    stream_options: JsonValue = None
    previous_response_id: Refused = None
    conversation: Refused = None
    background: Refused = None
    prompt: Refused = None
    top_logprobs: Refused = None

    _numbers = field_validator("max_output_tokens", "temperature", "top_p", mode="before")(no_booleans)

    @property
    def n(self) -> int:
        return 1

    def requests(self, most_tokens: int, sampling: Mapping[str, float]) -> list[GenerateRequest]:
        refuse(self, UNSUPPORTED)
        values: dict[str, Any] = {
            "messages": self._messages(),
            "max_tokens": self.max_output_tokens or most_tokens,
            **sampling,
            "tools": [
                {"function": one.model_dump(include={"name", "description", "parameters", "strict"})}
                for one in self.tools or ()
            ],
        }
        values |= given(self, ("temperature", "top_p", "parallel_tool_calls", "speculation"))
        if self.tool_choice is not None:
            choice = self.tool_choice
            values["tool_choice"] = choice if isinstance(choice, str) else {"function": {"name": choice.name}}
        if self.reasoning is not None and self.reasoning.effort is not None:
            values["chat_template_kwargs"] = {"reasoning_effort": self.reasoning.effort}
        if self.text is not None and self.text.format is not None:
            values["response_format"] = _response_format(self.text.format)
        try:
            return [GenerateRequest.model_validate(values)]
        except ValidationError as error:
            raise InvalidBody(error, self.names()) from error

    def names(self) -> dict[str, str]:
        return {"messages": "input", "max_tokens": "max_output_tokens", "response_format": "text.format"}

    def _messages(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        if self.instructions:
            found.append({"role": "system", "content": self.instructions})
        thought = ""
        for item in self.input:
            if isinstance(item, ReasoningItem):
                thought = _text(item.content or [])
                continue
            if isinstance(item, ResultItem):
                found.append({"role": "tool", "content": _text(item.output), "tool_call_id": item.call_id})
                continue
            own = {"reasoning_content": thought} if thought else {}
            thought = ""
            if isinstance(item, CallItem):
                call = {"id": item.call_id, "function": {"name": item.name, "arguments": item.arguments}}
                if not found or found[-1]["role"] != "assistant":
                    found.append({"role": "assistant", "content": "", **own})
                found[-1].setdefault("tool_calls", []).append(call)
                continue
            role = "system" if item.role == "developer" else item.role
            found.append({"role": role, "content": _text(item.content), **(own if role == "assistant" else {})})
        return found


def _text(content: list[Content]) -> str:
    return "".join(one.text for one in content)


def _response_format(form: TextFormat) -> dict[str, Any]:
    if form.type != "json_schema":
        return {"type": form.type}
    named = {"name": form.name, "description": form.description, "strict": form.strict}
    return {"type": "json_schema", "json_schema": {**named, "schema": form.json_schema}}

"""Define what an answer may look like: JSON, a regular expression, a choice, a grammar, calls of tools."""

import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StrictBool,
    field_validator,
    model_validator,
)

ANY_OBJECT = '{"type": "object"}'
MAX_FORM_CHARACTERS = 32_768  # the verifier compiles it between two steps: tenths of a second at worst
MAX_TOOLS_CHARACTERS = 2**18  # of all tools, which a prompt holds as well
MAX_TOOLS = 256


class Lenient(BaseModel):
    """Base of what clients send with fields of their own, which are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)


class Thinking(StrEnum):
    """Where an answer has its reasoning, which ends at the template's mark."""

    NO = "no"
    FIRST = "first"  # it may begin with some, after another mark
    INSIDE = "inside"  # the prompt ends within it


class JsonSchemaFormat(BaseModel):
    """Name a JSON schema. The answer always follows it; `strict` forbids the keys that it does not name."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_by_name=True, serialize_by_alias=True)

    name: str = Field("answer", max_length=64)
    description: str | None = Field(None, max_length=4096)
    json_schema: dict[str, JsonValue] = Field(alias="schema", description="what the answer follows")
    strict: StrictBool | None = None

    @field_validator("json_schema")
    @classmethod
    def _short(cls, schema: dict[str, JsonValue]) -> dict[str, JsonValue]:
        if len(json.dumps(schema)) > MAX_FORM_CHARACTERS:
            raise ValueError(f"must have at most {MAX_FORM_CHARACTERS} characters")
        return schema


FORMS = ("json_schema", "regex", "choice", "grammar")  # types of a field of their own
ONE_FORM: dict[str, Any] = {
    "anyOf": [
        *(
            {
                "required": ["type", one],
                "properties": {
                    "type": {"const": one},
                    one: {"not": {"type": "null"}},
                    **{other: {"type": "null"} for other in FORMS if other != one},
                },
            }
            for one in FORMS
        ),
        {"properties": {"type": {"enum": ["text", "json_object"]}, **{one: {"type": "null"} for one in FORMS}}},
    ]
}
Form = Annotated[str, Field(min_length=1, max_length=MAX_FORM_CHARACTERS)]


class ResponseFormat(BaseModel):
    """Select `text`, `json_object` (any JSON object) or a form; tokens that the form forbids are masked."""

    model_config = ConfigDict(frozen=True, extra="forbid", json_schema_extra=ONE_FORM)

    type: Literal["text", "json_object", "json_schema", "regex", "choice", "grammar"] = "text"
    json_schema: JsonSchemaFormat | None = None
    regex: Form | None = Field(None, description="that the whole answer matches")
    choice: Annotated[tuple[Form, ...], Field(min_length=1, max_length=1024)] | None = Field(
        None, description="the answer is one of these texts"
    )
    grammar: Form | None = Field(None, description="in the Lark syntax of llguidance, with a rule `start`")

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        for name in FORMS:
            if (self.type == name) != (getattr(self, name) is not None):
                raise ValueError(f"{name} must be given with type {name}, and with no other type")
        return self


class Function(Lenient):
    """Describe a function to the model. Calls follow the schema `parameters`; `strict` forbids other keys."""

    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")
    description: str | None = None
    parameters: dict[str, JsonValue] | None = Field(None, description="JSON schema; none: without arguments")
    strict: StrictBool | None = None

    @property
    def arguments(self) -> dict[str, JsonValue]:
        """Return the schema that calls follow."""
        if self.parameters is None:
            return {"type": "object", "properties": {}, "additionalProperties": False}
        return closed(self.parameters) if self.strict else self.parameters


class Tool(Lenient):
    type: Literal["function"] = "function"
    function: Function


def _few(tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
    names = [tool.function.name for tool in tools]
    if len(set(names)) < len(names):
        raise ValueError("must have a different name each")
    if sum(len(tool.model_dump_json()) for tool in tools) > MAX_TOOLS_CHARACTERS:
        raise ValueError(f"must have at most {MAX_TOOLS_CHARACTERS} characters together")
    return tools


Tools = Annotated[tuple[Tool, ...], Field(max_length=MAX_TOOLS), AfterValidator(_few)]


class NamedFunction(Lenient):
    name: str


class NamedTool(Lenient):
    """Require calls of one function."""

    type: Literal["function"] = "function"
    function: NamedFunction


ToolChoice = Literal["auto", "none", "required"] | NamedTool


class FunctionCall(Lenient):
    """Hold a function's name and its arguments, JSON as the model wrote it."""

    name: str = Field(max_length=128)
    arguments: str = "{}"

    @field_validator("arguments")
    @classmethod
    def _object(cls, text: str) -> str:
        try:
            is_object = isinstance(json.loads(text or "{}"), dict)
        except (ValueError, RecursionError):
            is_object = False
        if not is_object:
            raise ValueError("must be a JSON object, written as a string")
        return text or "{}"


class ToolCall(Lenient):
    id: str = Field("", max_length=256)
    type: Literal["function"] = "function"
    function: FunctionCall


def chosen(tools: Iterable[Tool], choice: ToolChoice) -> list[Function]:
    """Return the functions that may be called."""
    if choice == "none":
        return []
    name = choice.function.name if isinstance(choice, NamedTool) else None
    return [tool.function for tool in tools if name in (None, tool.function.name)]


def closed(value: Any) -> Any:
    """Forbid the keys that a JSON schema does not name, in all its objects that say nothing of others."""
    if isinstance(value, list):
        return [closed(one) for one in value]
    if not isinstance(value, Mapping):
        return value
    inner = {name: one if name in ("enum", "const", "default") else closed(one) for name, one in value.items()}
    if isinstance(inner.get("properties"), dict):
        inner.setdefault("additionalProperties", False)
    return inner

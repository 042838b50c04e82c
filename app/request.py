"""What a caller may want of an answer beside its text: an end, a form, how likely its tokens were."""

import json
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

ANY_OBJECT = '{"type": "object"}'
MAX_LOGPROBS = 20
StopString = Annotated[str, Field(min_length=1, max_length=256)]


class TokenLogprobs(BaseModel):
    """What the target gave one token, and its likeliest ones there (id, log-probability): after bias, penalties and
    masks, before temperature and filters (design D1)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class JsonSchemaFormat(BaseModel):
    """A schema and its name. The answer always follows it, `strict` or not."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_by_name=True, serialize_by_alias=True)

    name: str = Field("answer", max_length=64)
    description: str | None = Field(None, max_length=4096)
    json_schema: dict[str, JsonValue] = Field(alias="schema", description="what the answer follows")
    strict: bool | None = None


class ResponseFormat(BaseModel):
    """`text`, `json_object` (any JSON object), or `json_schema`. Other tokens than the form allows cannot be said."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: JsonSchemaFormat | None = None

    @model_validator(mode="after")
    def _one_schema(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema belongs to type json_schema, and only there")
        return self

    def schema_text(self) -> str | None:
        """The JSON schema that the answer follows, as JSON; None: it is free. The order of properties counts."""
        if self.json_schema is not None:
            return json.dumps(self.json_schema.json_schema)
        return ANY_OBJECT if self.type == "json_object" else None

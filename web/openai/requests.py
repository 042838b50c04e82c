"""Translate OpenAI's bodies to generate requests.

A field without effect here (Ignored) may have any value. An unsupported one (UNSUPPORTED) may have only values without
effect. Any other name is refused. What OpenAI does not have (`top_k`, `ignore_eos`, `speculation`, say) clients send as
`extra_body`.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    StrictBool,
    ValidationError,
    field_validator,
)

from app.errors import Unsupported
from app.request import (
    MAX_CHARACTERS,
    ChatMessage,
    GenerateRequest,
    LogitBias,
    Logprobs,
    MinP,
    Penalty,
    ResponseFormat,
    Speculation,
    Stop,
    StopTokenIds,
    Temperature,
    TokenIds,
    TopK,
    TopP,
    listed,
    no_booleans,
)
from web.errors import InvalidBody

MAX_CHOICES = 16  # of one call; each is a request of its own
COMPLETION_TOKENS = 16  # of a completion that does not say how many: OpenAI's default
SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "seed", "frequency_penalty", "presence_penalty", "logit_bias",
    "allowed_token_ids", "stop", "stop_token_ids", "ignore_eos", "min_tokens", "speculation",
)  # fmt: skip
UNSUPPORTED: dict[str, tuple[JsonValue, ...]] = {
    "tools": ([],), "tool_choice": ("none", "auto"), "functions": ([],), "function_call": ("none", "auto"),
    "modalities": (["text"],), "audio": (), "web_search_options": (), "echo": (False,), "best_of": (1,),
    "suffix": ("",), "repetition_penalty": (1, 1.0), "length_penalty": (1, 1.0), "use_beam_search": (False,),
    "skip_special_tokens": (True,), "spaces_between_special_tokens": (True, False),
    "add_special_tokens": (True, False), "include_stop_str_in_output": (False,), "add_generation_prompt": (True,),
    "continue_final_message": (False,), "chat_template": (), "chat_template_kwargs": ({},), "documents": ([],),
    "prompt_logprobs": (), "truncate_prompt_tokens": (), "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,), "structured_outputs": ({},), "guided_json": (), "guided_regex": ("",),
    "guided_choice": ([],), "guided_grammar": ("",),
}  # fmt: skip


def _prompts(value: Any) -> Any:
    """Put one prompt, a text or token ids, into a list of one."""
    if isinstance(value, list) and value and all(isinstance(one, int) for one in value):
        value = [value]
    value = listed(value)
    for one in value if isinstance(value, list) else ():
        no_booleans(one)
        if type(one) not in (str, list) or type(one) is not type(value[0]):
            raise ValueError("must be a text, token ids, or a list of either")
    return value


Text = Annotated[str, Field(min_length=1, max_length=MAX_CHARACTERS)]
ONE_OR_MORE = Text | TokenIds | Annotated[list[Text] | list[TokenIds], Field(min_length=1, max_length=MAX_CHOICES)]
Prompts = Annotated[list[Any], BeforeValidator(_prompts, json_schema_input_type=ONE_OR_MORE)]
Ignored = Annotated[JsonValue, Field(description="taken and ignored")]
Refused = Annotated[JsonValue, Field(description="refused, unless it asks for nothing")]


class StreamOptions(BaseModel):
    """`include_usage`: a last chunk with the usage. Others change nothing here."""

    include_usage: StrictBool | None = False


def _say_what_is_refused(schema: dict[str, Any]) -> None:
    for name in UNSUPPORTED.keys() & schema["properties"].keys():
        schema["properties"][name]["enum"] = [None, *UNSUPPORTED[name]]


class Body(BaseModel):
    """The fields of both calls."""

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra=_say_what_is_refused)

    model: str
    n: int | None = Field(1, ge=1, le=MAX_CHOICES, description="texts of each prompt: the seed's choices 0, 1, 2, ...")
    stream: StrictBool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=1)
    temperature: Temperature | None = Field(1.0, description="0 is greedy")
    top_p: TopP | None = None
    seed: int | None = Field(None, description="same seed, same texts")
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: LogitBias | None = None
    stop: Stop | None = None

    top_k: TopK | None = Field(None, description="Paceline's own")
    min_p: MinP | None = Field(None, description="Paceline's own")
    allowed_token_ids: TokenIds | None = Field(None, description="Paceline's own: no other token can be said")
    stop_token_ids: StopTokenIds | None = Field(None, description="as at vLLM: tokens that end the text, too")
    ignore_eos: StrictBool | None = Field(None, description="as at vLLM: go on behind the model's end token")
    min_tokens: int | None = Field(None, ge=0, description="as at vLLM: least tokens before one that ends the text")
    speculation: Speculation | None = Field(
        None, description="Paceline's own: bounds, or just true or false; changes speed, never the text"
    )

    user: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_retention: Ignored = None
    store: Ignored = None
    metadata: Ignored = None
    service_tier: Ignored = None
    priority: Ignored = None
    request_id: Ignored = None
    repetition_penalty: Refused = None
    length_penalty: Refused = None
    use_beam_search: Refused = None
    best_of: Refused = None
    skip_special_tokens: Refused = None
    spaces_between_special_tokens: Refused = None
    include_stop_str_in_output: Refused = None
    add_special_tokens: Refused = None
    echo: Refused = None
    prompt_logprobs: Refused = None
    truncate_prompt_tokens: Refused = None
    return_token_ids: Refused = None
    return_tokens_as_token_ids: Refused = None
    structured_outputs: Refused = None
    guided_json: Refused = None
    guided_regex: Refused = None
    guided_choice: Refused = None
    guided_grammar: Refused = None

    _numbers = field_validator(
        "n", "max_tokens", "temperature", "top_p", "seed", "frequency_penalty", "presence_penalty", "logit_bias",
        "top_k", "min_p", "allowed_token_ids", "stop_token_ids", "min_tokens", mode="before",
    )(no_booleans)  # fmt: skip

    def _each(self, inputs: Iterable[dict[str, Any]], rest: dict[str, Any], names: dict[str, str]) -> Any:
        for name, harmless in UNSUPPORTED.items():
            value = getattr(self, name, None)
            if value is not None and repr(value) not in map(repr, harmless):  # 0 is not False
                raise Unsupported(name, "is not supported here")
        values = {name: value for name in SAMPLING if (value := getattr(self, name)) is not None}
        if self.seed is not None:
            values["seed"] = self.seed % 2**63
        try:
            # OpenAI's default is to sample
            requests = [GenerateRequest.model_validate({"temperature": 1.0, **values, **rest, **one}) for one in inputs]
        except ValidationError as error:
            raise InvalidBody(error, names) from error
        return [one.model_copy(update={"choice": i}) for one in requests for i in range(self.n or 1)]


def _text(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    for part in value:
        if not (isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)):
            raise ValueError("only content parts of type text are supported")
    return "".join(part["text"] for part in value)


class TextPart(BaseModel):
    """A part of a message's content. Other fields are ignored."""

    type: Literal["text"]
    text: str


class Turn(BaseModel):
    """A message of a conversation. Other fields (`name`, say) are ignored."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str | None, BeforeValidator(_text, json_schema_input_type=str | list[TextPart] | None)] = None
    tool_calls: JsonValue = Field(None, description="refused, unless empty", json_schema_extra={"enum": [None, []]})


class ChatBody(Body):
    """POST /v1/chat/completions."""

    messages: list[Turn] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1, description="goes before max_tokens")
    logprobs: StrictBool | None = False
    top_logprobs: Logprobs | None = Field(None, description="requires logprobs to be true")
    response_format: ResponseFormat | None = None

    parallel_tool_calls: Ignored = None
    reasoning_effort: Ignored = None
    verbosity: Ignored = None
    prediction: Ignored = None
    tools: Refused = None
    tool_choice: Refused = None
    functions: Refused = None
    function_call: Refused = None
    modalities: Refused = None
    audio: Refused = None
    web_search_options: Refused = None
    add_generation_prompt: Refused = None
    continue_final_message: Refused = None
    chat_template: Refused = None
    chat_template_kwargs: Refused = None
    documents: Refused = None

    _chat_numbers = field_validator("max_completion_tokens", "top_logprobs", mode="before")(no_booleans)

    def requests(self, most_tokens: int) -> list[GenerateRequest]:
        if self.top_logprobs is not None and not self.logprobs:
            raise Unsupported("top_logprobs", "requires logprobs to be true")
        if any(turn.tool_calls not in (None, []) for turn in self.messages):
            raise Unsupported("messages", "tool calls are not supported here")
        wanted = (self.top_logprobs or 0) if self.logprobs else None
        rest = {
            "max_tokens": self.max_completion_tokens or self.max_tokens or most_tokens,
            "logprobs": wanted,
            "response_format": self.response_format,
        }
        return list(self._each([{"messages": [turn_of(turn) for turn in self.messages]}], rest, self.names()))

    def names(self) -> dict[str, str]:
        """Map fields of a generate request to the caller's names."""
        tokens = {} if self.max_completion_tokens is None else {"max_tokens": "max_completion_tokens"}
        return {"logprobs": "top_logprobs", **tokens}


class CompletionBody(Body):
    """POST /v1/completions: the prompt is continued as it is."""

    prompt: Prompts
    logprobs: Logprobs | None = None

    suffix: Refused = None

    _completion_numbers = field_validator("logprobs", mode="before")(no_booleans)

    def requests(self, most_tokens: int) -> list[GenerateRequest]:
        """Return the requests, those of one prompt side by side. Raises InvalidBody, Unsupported."""
        texts = len(self.prompt) * (self.n or 1)
        if not 1 <= texts <= MAX_CHOICES:
            raise Unsupported("prompt", f"a call must ask for 1 to {MAX_CHOICES} texts (prompts times n), not {texts}")
        rest = {"max_tokens": self.max_tokens or min(COMPLETION_TOKENS, most_tokens), "logprobs": self.logprobs}
        inputs = [
            {"prompt": one, "raw": True} if isinstance(one, str) else {"prompt_ids": tuple(one)} for one in self.prompt
        ]
        return list(self._each(inputs, rest, self.names()))

    def names(self) -> dict[str, str]:
        """Map fields of a generate request to the caller's names."""
        return {"prompt_ids": "prompt"}


def turn_of(turn: Turn) -> ChatMessage:
    return ChatMessage(role="system" if turn.role == "developer" else turn.role, content=turn.content or "")

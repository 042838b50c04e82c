"""Translate OpenAI's bodies to generate requests.

A field without effect here (Ignored) may have any value. An unsupported one (UNSUPPORTED) may have only values without
effect. Any other name is refused. What OpenAI does not have (`top_k`, `ignore_eos`, `speculation`, say) clients send as
`extra_body`.
"""

import json
from collections.abc import Callable, Iterable, Mapping
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

from app.answer_form import ResponseFormat, Tool, ToolCall, ToolChoice
from app.errors import Unsupported
from app.request import (
    MAX_CHARACTERS,
    GenerateRequest,
    LogitBias,
    Logprobs,
    MinP,
    Penalty,
    RepetitionPenalty,
    Speculation,
    Stop,
    StopTokenIds,
    Temperature,
    ThinkingBudget,
    TokenIds,
    TopK,
    TopP,
    listed,
    no_booleans,
)
from web.errors import InvalidBody
from web.openai.text_stream import Echo

MAX_CHOICES = 16  # of one call; each is a request of its own
COMPLETION_TOKENS = 16  # of a completion that does not say how many: OpenAI's default
SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "seed", "frequency_penalty", "presence_penalty", "repetition_penalty",
    "logit_bias", "allowed_token_ids", "stop", "stop_token_ids", "ignore_eos", "min_tokens", "thinking_token_budget",
    "speculation",
)  # fmt: skip
GUIDED = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")
Harmless = Mapping[str, tuple[JsonValue, ...]]  # values without effect, by field
CONVERSATION = (
    "tools", "tool_choice", "parallel_tool_calls", "documents", "chat_template_kwargs", "add_generation_prompt",
    "continue_final_message",
)  # fmt: skip
UNSUPPORTED: Harmless = {
    "functions": ([],), "function_call": ("none", "auto"),
    "modalities": (["text"],), "audio": (), "web_search_options": (), "best_of": (1,),
    "suffix": ("",), "length_penalty": (1, 1.0), "use_beam_search": (False,),
    "skip_special_tokens": (True,), "spaces_between_special_tokens": (True, False),
    "add_special_tokens": (True, False), "include_stop_str_in_output": (False,), "chat_template": (),
    "prompt_logprobs": (), "truncate_prompt_tokens": (), "include_reasoning": (True,), "bad_words": ([],),
    "logprob_token_ids": ([],),  # engines give the likeliest tokens alone
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


class StructuredOutputs(BaseModel):
    """One form of the answer, under vLLM's names."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    json_: dict[str, JsonValue] | str | None = Field(None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = Field(None, description="in llguidance's Lark syntax")
    json_object: StrictBool | None = None


class StreamOptions(BaseModel):
    """`include_usage`: a last chunk with the usage. Others change nothing here."""

    include_usage: StrictBool | None = False


def given(body: BaseModel, names: Iterable[str]) -> dict[str, Any]:
    """Return those of a body's fields that are not null."""
    return {name: value for name in names if (value := getattr(body, name)) is not None}


def refuse(body: BaseModel, unsupported: Harmless) -> None:
    """Raise Unsupported for a field that asks for something."""
    for name, harmless in unsupported.items():
        value = getattr(body, name, None)
        if value is not None and repr(value) not in map(repr, harmless):  # 0 is not False
            raise Unsupported(name, "is not supported here")


def saying_what_is_refused(unsupported: Harmless) -> Callable[[dict[str, Any]], None]:
    """Return what adds it to a body's JSON schema."""

    def say(schema: dict[str, Any]) -> None:
        for name in unsupported.keys() & schema["properties"].keys():
            schema["properties"][name]["enum"] = [None, *unsupported[name]]

    return say


class Body(BaseModel):
    """The fields of both calls."""

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra=saying_what_is_refused(UNSUPPORTED))

    model: str
    n: int | None = Field(1, ge=1, le=MAX_CHOICES, description="texts of each prompt: the seed's choices 0, 1, 2, ...")
    stream: StrictBool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=1)
    temperature: Temperature | None = Field(None, description="0 is greedy; absent, the model's own, or 1")
    top_p: TopP | None = None
    seed: int | None = Field(None, description="same seed, same texts")
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: RepetitionPenalty | None = Field(None, description="as at vLLM; 1 changes nothing")
    logit_bias: LogitBias | None = None
    stop: Stop | None = None

    top_k: TopK | None = Field(None, description="Paceline's own")
    min_p: MinP | None = Field(None, description="Paceline's own")
    allowed_token_ids: TokenIds | None = Field(None, description="Paceline's own: no other token can be said")
    stop_token_ids: StopTokenIds | None = Field(None, description="as at vLLM: tokens that end the text, too")
    ignore_eos: StrictBool | None = Field(None, description="as at vLLM: go on behind the model's end token")
    min_tokens: int | None = Field(None, ge=0, description="as at vLLM: least tokens before one that ends the text")
    thinking_token_budget: ThinkingBudget | None = Field(None, description="as at vLLM: most tokens of reasoning")
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
    cache_salt: Ignored = None
    session_id: Ignored = None
    request_id: Ignored = None
    length_penalty: Refused = None
    use_beam_search: Refused = None
    best_of: Refused = None
    skip_special_tokens: Refused = None
    spaces_between_special_tokens: Refused = None
    include_stop_str_in_output: Refused = None
    add_special_tokens: Refused = None
    prompt_logprobs: Refused = None
    truncate_prompt_tokens: Refused = None
    include_reasoning: Refused = None
    bad_words: Refused = None
    logprob_token_ids: Refused = None
    return_token_ids: StrictBool | None = Field(None, description="as at vLLM: token ids of prompt and answer")
    return_tokens_as_token_ids: StrictBool | None = Field(None, description="as at vLLM: `token_id:7` in logprobs")
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = Field(None, description="as at vLLM: the answer's form")
    guided_json: dict[str, JsonValue] | str | None = Field(None, description="the same, under vLLM's former names")
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None

    _numbers = field_validator(
        "n", "max_tokens", "temperature", "top_p", "seed", "frequency_penalty", "presence_penalty",
        "repetition_penalty", "logit_bias", "top_k", "min_p", "allowed_token_ids", "stop_token_ids", "min_tokens",
        "thinking_token_budget", mode="before",
    )(no_booleans)  # fmt: skip

    @property
    def with_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def _unsaid(self, sampling: Mapping[str, float]) -> dict[str, Any]:
        return {name: value for name, value in sampling.items() if getattr(self, name) is None}

    def _each(self, inputs: Iterable[dict[str, Any]], rest: dict[str, Any], names: dict[str, str]) -> Any:
        refuse(self, UNSUPPORTED)
        rest = {**rest, "response_format": self.response_format}
        if forms := self._forms():
            if self.response_format is not None or len(forms) > 1:
                raise Unsupported([*forms][-1], "give one form of the answer")
            rest = {**rest, "response_format": _form(*next(iter(forms.items())))}
        values = given(self, SAMPLING)
        if self.seed is not None:
            values["seed"] = self.seed % 2**63
        try:
            requests = [GenerateRequest.model_validate({**values, **rest, **one}) for one in inputs]
        except ValidationError as error:
            raise InvalidBody(error, names) from error
        return [one.model_copy(update={"choice": i}) for one in requests for i in range(self.n or 1)]

    def _forms(self) -> dict[str, Any]:
        """Return what vLLM's fields say of the answer's form, by field."""
        found = {} if self.structured_outputs is None else self.structured_outputs.model_dump(by_alias=True)
        fields = {f"structured_outputs.{name}": value for name, value in found.items()}
        fields |= {name: getattr(self, name) for name in GUIDED}
        return {name: value for name, value in fields.items() if value}

    def names(self) -> dict[str, str]:
        """Map fields of a generate request to the caller's names."""
        forms = [*self._forms()]
        return {"response_format": forms[0]} if forms else {}


def _form(field: str, value: Any) -> dict[str, Any]:
    """Return a response format for one of vLLM's fields."""
    kind = field.removeprefix("structured_outputs.").removeprefix("guided_")
    if kind == "json_object":
        return {"type": kind}
    if kind != "json":
        return {"type": kind, kind: value}
    return {"type": "json_schema", "json_schema": {"schema": _schema(field, value)}}


def _schema(field: str, value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise Unsupported(field, f"is not JSON: {error}") from error


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
    """A message of a conversation. Other fields are ignored."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str | None, BeforeValidator(_text, json_schema_input_type=str | list[TextPart] | None)] = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class ChatBody(Body):
    """POST /v1/chat/completions."""

    messages: list[Turn] = Field(min_length=1)
    echo: StrictBool | None = Field(None, description="refused, unless false")
    max_completion_tokens: int | None = Field(None, ge=1, description="goes before max_tokens")
    logprobs: StrictBool | None = False
    top_logprobs: Logprobs | None = Field(None, description="requires logprobs to be true")

    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: StrictBool | None = None
    documents: list[dict[str, JsonValue]] | None = None
    chat_template_kwargs: dict[str, JsonValue] | None = Field(None, description="as at vLLM: the template's variables")
    add_generation_prompt: StrictBool | None = None
    continue_final_message: StrictBool | None = Field(None, description="as at vLLM: go on with the last message")
    reasoning_effort: str | None = Field(None, description="a variable of the chat template, if it has one")

    verbosity: Ignored = None
    prediction: Ignored = None
    functions: Refused = None
    function_call: Refused = None
    modalities: Refused = None
    audio: Refused = None
    web_search_options: Refused = None
    chat_template: Refused = None

    _chat_numbers = field_validator("max_completion_tokens", "top_logprobs", mode="before")(no_booleans)

    def requests(self, most_tokens: int, sampling: Mapping[str, float]) -> list[GenerateRequest]:
        """Return the requests of one prompt. Raises InvalidBody, Unsupported."""
        if self.echo:
            raise Unsupported("echo", "is not supported here")
        if self.top_logprobs is not None and not self.logprobs:
            raise Unsupported("top_logprobs", "requires logprobs to be true")
        wanted = (self.top_logprobs or 0) if self.logprobs else None
        rest = {
            **self._unsaid(sampling),
            "max_tokens": self.max_completion_tokens or self.max_tokens or most_tokens,
            "logprobs": wanted,
            **given(self, CONVERSATION),
        }
        if self.reasoning_effort is not None:
            rest["chat_template_kwargs"] = {
                "reasoning_effort": self.reasoning_effort,
                **(self.chat_template_kwargs or {}),
            }
        return list(self._each([{"messages": [turn_of(turn) for turn in self.messages]}], rest, self.names()))

    def names(self) -> dict[str, str]:
        tokens = {} if self.max_completion_tokens is None else {"max_tokens": "max_completion_tokens"}
        return {**super().names(), "logprobs": "top_logprobs", **tokens}


class CompletionBody(Body):
    """POST /v1/completions: the prompt is continued as it is."""

    prompt: Prompts
    max_tokens: int | None = Field(None, ge=0, description="0 asks for the prompt alone, with echo")
    logprobs: Logprobs | None = None
    echo: StrictBool | None = Field(None, description="begin with the prompt, and its log-probabilities; not streamed")

    suffix: Refused = None

    @property
    def echoes(self) -> Echo:
        return Echo.NO if not self.echo else Echo.PROMPT if self.max_tokens == 0 else Echo.BOTH

    _completion_numbers = field_validator("logprobs", mode="before")(no_booleans)

    def requests(self, most_tokens: int, sampling: Mapping[str, float]) -> list[GenerateRequest]:
        """Return the requests, those of one prompt side by side. Raises InvalidBody, Unsupported."""
        texts = len(self.prompt) * (self.n or 1)
        if not 1 <= texts <= MAX_CHOICES:
            raise Unsupported("prompt", f"a call must ask for 1 to {MAX_CHOICES} texts (prompts times n), not {texts}")
        if self.echo and self.stream:
            raise Unsupported("echo", "is not supported with stream")
        if self.max_tokens == 0 and not self.echo:
            raise Unsupported("max_tokens", "must be at least 1 without echo")
        tokens = min(COMPLETION_TOKENS, most_tokens) if self.max_tokens is None else self.max_tokens
        rest = {**self._unsaid(sampling), "max_tokens": tokens or 1, "logprobs": self.logprobs}
        if self.echo:
            rest["prompt_logprobs"] = self.logprobs
        inputs = [
            {"prompt": one, "raw": True} if isinstance(one, str) else {"prompt_ids": tuple(one)} for one in self.prompt
        ]
        return list(self._each(inputs, rest, self.names()))

    def names(self) -> dict[str, str]:
        return {**super().names(), "prompt_ids": "prompt"}


def turn_of(turn: Turn) -> dict[str, Any]:
    """Return the message's fields in a generate request."""
    values = {name: value for name, value in turn if value is not None}
    return {"content": "", **values, "role": "system" if turn.role == "developer" else turn.role}

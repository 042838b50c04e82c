"""Define a caller's request: prompt, sampling, length, form of the answer, bounds of speculation."""

from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    StrictBool,
    field_validator,
    model_validator,
)

from app.answer_form import MAX_TOOLS, Function, ResponseFormat, ToolCall, ToolChoice, Tools, chosen

MAX_LOGPROBS = 20
MAX_CHARACTERS = 2**20  # of a prompt, or of all messages
MAX_MESSAGES = 16_384
TOKEN_NUMBERS: dict[str, JsonValue] = {
    "propertyNames": {"pattern": "^[0-9]+$"}
}  # pydantic does not say it of a dict's keys


def no_booleans(value: Any) -> Any:
    """Refuse true and false where numbers belong: pydantic takes them for 1 and 0."""
    parts = value if isinstance(value, list | tuple) else value.values() if isinstance(value, dict) else (value,)
    if bool in map(type, parts):
        raise ValueError("must not be true or false where a number belongs")
    return value


def listed(value: Any) -> Any:
    """Put a text that stands for a list of one into that list."""
    return [value] if isinstance(value, str) else value


def _switch(value: Any) -> Any:
    return {"enabled": value} if isinstance(value, bool) else value


TokenId = Annotated[int, Field(ge=0)]
TokenIds = Annotated[tuple[TokenId, ...], Field(min_length=1, max_length=65536)]
LogitBias = Annotated[
    dict[TokenId, Annotated[float, Field(ge=-100.0, le=100.0)]],
    Field(max_length=1024, json_schema_extra=TOKEN_NUMBERS),
]
Temperature = Annotated[float, Field(ge=0.0, le=10.0, allow_inf_nan=False)]
TopP = Annotated[float, Field(gt=0.0, le=1.0)]
TopK = Annotated[
    int, Field(ge=0), BeforeValidator(lambda value: 0 if value == -1 else value, json_schema_input_type=int)
]  # -1 keeps all, as elsewhere
ThinkingBudget = Annotated[int, Field(ge=-1)]
MinP = Annotated[float, Field(ge=0.0, le=1.0)]
Penalty = Annotated[float, Field(ge=-2.0, le=2.0)]
RepetitionPenalty = Annotated[float, Field(gt=0.0, le=10.0)]
Logprobs = Annotated[int, Field(ge=0, le=MAX_LOGPROBS)]
StopTokenIds = Annotated[tuple[TokenId, ...], Field(max_length=64)]
StopString = Annotated[str, Field(min_length=1, max_length=256)]
StopStrings = Annotated[tuple[StopString, ...], Field(max_length=16)]
Stop = Annotated[StopStrings, BeforeValidator(listed, json_schema_input_type=StopString | StopStrings)]
MAX_SEED = 2**63 - 1


class TokenLogprobs(BaseModel):
    """One token's log-probability and the likeliest tokens there (id, log-probability).

    They are those after bias, penalties and masks, before temperature and filters (design D1).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Message(BaseModel):
    """Base of all messages."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)  # inputs are prompts


class Sampling(Message):
    """Choose the target's token (design D1): bias and penalties, mask, temperature, top-k, top-p, min-p."""

    temperature: Temperature = Field(0.0, description="0 is greedy")
    top_p: TopP = Field(1.0, description="nucleus mass; 1 keeps all")
    top_k: TopK = Field(0, description="keep the k most likely tokens; 0 keeps all")
    min_p: MinP = Field(0.0, description="keep tokens at least this fraction of the likeliest")
    seed: int | None = Field(None, ge=0, le=MAX_SEED, description="same seed, same text; drawn at admission if absent")
    choice: int = Field(0, ge=0, lt=2**32, description="which of the many texts of one seed")
    frequency_penalty: Penalty = Field(0.0, description="times a token's count so far, off its logit")
    presence_penalty: Penalty = Field(0.0, description="off the logit of every token seen so far")
    repetition_penalty: RepetitionPenalty = Field(
        1.0, description="divides the logit of every token seen so far if it is above 0, else multiplies it"
    )
    logit_bias: LogitBias = Field(default_factory=dict, description="token id to what is added to its logit")
    allowed_token_ids: TokenIds | None = Field(None, description="if given, no other token can be said")

    _sampling_numbers = field_validator(
        "temperature", "top_p", "top_k", "min_p", "seed", "choice", "frequency_penalty", "presence_penalty",
        "repetition_penalty", "logit_bias", "allowed_token_ids", mode="before",
    )(no_booleans)  # fmt: skip


class SpeculationBounds(Message):
    """Bound a request's speculation and say what is told of it. It changes the speed, never the text."""

    enabled: StrictBool = True
    max_draft_tokens: int | None = Field(None, ge=0, le=64, description="most draft tokens verified a round")
    drafters: tuple[str, ...] | None = Field(None, description="only these, by name; an unknown name is refused")
    rejected: StrictBool = Field(False, description="give the wrong guesses of each round in the native API's events")

    _numbers = field_validator("max_draft_tokens", mode="before")(no_booleans)


Speculation = Annotated[
    SpeculationBounds, BeforeValidator(_switch, json_schema_input_type=StrictBool | SpeculationBounds)
]


class ChatMessage(Message):
    role: str = Field(pattern=r"^(system|user|assistant|tool)$")
    content: str = ""
    reasoning_content: str | None = Field(None, description="of an assistant's message, for templates that show it")
    tool_calls: tuple[ToolCall, ...] = Field((), max_length=MAX_TOOLS, description="of an assistant's message")
    tool_call_id: str | None = Field(None, max_length=256, description="of the call that a tool's message answers")
    name: str | None = Field(None, max_length=256)

    @model_validator(mode="after")
    def _calls(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise ValueError("only an assistant's message has tool_calls")
        if not self.tool_calls and "content" not in self.model_fields_set:
            raise ValueError("a message must have content, or tool_calls")
        return self

    @property
    def characters(self) -> int:
        return len(self.content) + sum(len(call.function.arguments) for call in self.tool_calls)


RESERVED = frozenset(("messages", "tools", "documents", "add_generation_prompt"))


class Conversation(Message):
    """What a model's chat template writes as a prompt."""

    messages: tuple[ChatMessage, ...] | None = Field(
        None, min_length=1, max_length=MAX_MESSAGES, description="a conversation, instead of prompt"
    )
    tools: Tools = Field((), description="functions that the answer may call")
    tool_choice: ToolChoice = Field("auto", description="none, auto, required, or one function")
    parallel_tool_calls: StrictBool = Field(True, description="an answer may have several calls")
    documents: tuple[dict[str, JsonValue], ...] = Field((), max_length=1024, description="for the chat template")
    chat_template_kwargs: dict[str, JsonValue] = Field(
        default_factory=dict, max_length=64, description="variables of the chat template, as enable_thinking"
    )
    add_generation_prompt: StrictBool = Field(True, description="false: without the begin of an answer")
    continue_final_message: StrictBool = Field(False, description="go on with the last message")

    @field_validator("messages")
    @classmethod
    def _short(cls, messages: tuple[ChatMessage, ...] | None) -> tuple[ChatMessage, ...] | None:
        if sum(message.characters for message in messages or ()) > MAX_CHARACTERS:
            raise ValueError(f"must have at most {MAX_CHARACTERS} characters in all contents together")
        return messages

    @field_validator("chat_template_kwargs")
    @classmethod
    def _free(cls, values: dict[str, JsonValue]) -> dict[str, JsonValue]:
        if taken := RESERVED & values.keys():
            raise ValueError(f"must not have {sorted(taken)[0]}")
        return values

    @model_validator(mode="after")
    def _known_choice(self) -> Self:
        if self.tool_choice not in ("auto", "none"):
            if not self.tools:
                raise ValueError("tool_choice needs tools")
            if not self.functions:
                raise ValueError("tool_choice must name one of the tools")
        if self.continue_final_message and (not self.messages or not self.messages[-1].content.strip()):
            raise ValueError("continue_final_message needs a last message with content")
        return self

    @property
    def prefix(self) -> str:
        """Return the answer's text that the prompt ends with."""
        return self.messages[-1].content if self.messages and self.continue_final_message else ""

    @property
    def functions(self) -> list[Function]:
        """Return those that the answer may call."""
        return chosen(self.tools, self.tool_choice)


class GenerateRequest(Conversation, Sampling):
    """Hold a caller's request: the JSON API's body, the Celery task's keyword arguments, the CLI's flags."""

    prompt: str | None = Field(
        None, min_length=1, max_length=MAX_CHARACTERS, description="text; becomes one user turn unless raw"
    )
    prompt_ids: TokenIds | None = Field(None, description="token ids to continue, instead of prompt")
    raw: StrictBool = Field(False, description="continue the prompt as it stands, without the chat template")
    max_tokens: int = Field(256, ge=1, description="most tokens to generate")
    stop: Stop = Field((), description="strings that end the text before them")
    stop_token_ids: StopTokenIds = Field((), description="tokens that end the text, as an end token does")
    ignore_eos: StrictBool = Field(False, description="go on behind the model's end token")
    min_tokens: int = Field(0, ge=0, description="least tokens before one that ends the text")
    thinking_token_budget: ThinkingBudget | None = Field(
        None, description="most tokens of reasoning, which is ended there; -1: any"
    )
    logprobs: Logprobs | None = Field(
        None, description="give each token's log-probability, and so many likeliest tokens"
    )
    prompt_logprobs: Logprobs | None = Field(
        None, description="give the log-probability of each prompt token behind the first, before bias and masks"
    )
    response_format: ResponseFormat | None = Field(None, description="JSON, or JSON of a schema")
    speculation: Speculation = Field(default_factory=SpeculationBounds, description="bounds, or just true or false")

    _numbers = field_validator(
        "max_tokens", "logprobs", "prompt_logprobs", "min_tokens", "stop_token_ids", "prompt_ids",
        "thinking_token_budget", mode="before",
    )(no_booleans)  # fmt: skip

    @model_validator(mode="after")
    def _one_input(self) -> Self:
        if [self.prompt, self.messages, self.prompt_ids].count(None) != 2:
            raise ValueError("give either prompt, messages or prompt_ids")
        if self.raw and self.prompt is None:
            raise ValueError("raw applies to prompt alone")
        if self.min_tokens > self.max_tokens:
            raise ValueError("min_tokens must be at most max_tokens")
        has_form = bool(self.functions) or (self.response_format is not None and self.response_format.type != "text")
        if has_form and self.ignore_eos:
            raise ValueError("ignore_eos goes with no response_format and no tools: a form ends with the end token")
        if has_form and self.allowed_token_ids is not None:
            raise ValueError("allowed_token_ids goes with no response_format and no tools")
        if self.functions and (self.raw or self.prompt_ids is not None):
            raise ValueError("tools need messages, or a prompt that is not raw: the chat template shows them")
        return self

    @property
    def conversation(self) -> Conversation:
        """Return the prompt as a conversation."""
        if self.messages is not None:
            return self
        return self.model_copy(update={"messages": (ChatMessage(role="user", content=self.prompt or ""),)})

    def sampling(self, seed: int) -> Sampling:
        return Sampling(**{**{name: getattr(self, name) for name in Sampling.model_fields}, "seed": seed})

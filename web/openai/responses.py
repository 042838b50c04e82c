"""Define the JSON that OpenAI's clients get: completions and chunks, of chats and of plain text."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from app.answer_form import ToolCall

Reason = Literal["stop", "length", "tool_calls"]
UNLESS_NONE = Field(exclude_if=lambda value: value is None)
TokenIds = Annotated[list[int] | None, UNLESS_NONE]  # of `return_token_ids`


class TopLogprob(BaseModel):
    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    content: list[TokenLogprob]
    refusal: None = None


class Message(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str | None
    reasoning_content: str | None = None
    reasoning: Annotated[str | None, UNLESS_NONE] = None  # the same, as vLLM names it
    tool_calls: list[ToolCall] | None = None
    refusal: None = None


class ChatChoice(BaseModel):
    index: int
    message: Message
    logprobs: ChatLogprobs | None
    finish_reason: Reason
    token_ids: TokenIds = None


class PredictionDetails(BaseModel):
    """Draft tokens that the target accepted, and those that it rejected."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class PromptDetails(BaseModel):
    """Tokens read from the prefix cache."""

    cached_tokens: int


class Usage(BaseModel):
    """Tokens, whatever chunks they came in; a prompt counts once however many texts follow it."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: PredictionDetails


class SpeculativeDecoding(BaseModel):
    """One text's rounds that verified draft tokens, in vLLM's shape. `acceptance_histogram`: by tokens accepted."""

    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: list[int]
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: None  # no fixed number


class Metrics(BaseModel):
    speculative_decoding: SpeculativeDecoding


class CompletionBase(BaseModel):
    id: str
    created: int
    model: str
    system_fingerprint: str | None


class ChatCompletion(CompletionBase):
    """POST /v1/chat/completions."""

    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]
    usage: Usage
    metrics: Annotated[Metrics | None, UNLESS_NONE] = None
    prompt_token_ids: TokenIds = None


class FunctionDelta(BaseModel):
    name: str | None = None
    arguments: str


class CallDelta(BaseModel):
    """The begin of a call, with its id and name, or more of its arguments."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta


class Delta(BaseModel):
    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[CallDelta] | None = None


class ChatChunkChoice(BaseModel):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: Reason | None
    token_ids: TokenIds = None


class ChatChunk(CompletionBase):
    """An event of a streamed chat completion."""

    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    metrics: Metrics | None = None
    prompt_token_ids: TokenIds = None


class CompletionLogprobs(BaseModel):
    """Log-probabilities of the tokens of a text or a part, in parallel lists; null of an echoed prompt's first token.

    Offsets: characters.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Reason | None
    prompt_token_ids: TokenIds = None
    token_ids: TokenIds = None


class Completion(CompletionBase):
    """POST /v1/completions, and an event of a streamed one."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChoice]
    usage: Usage | None = None
    metrics: Annotated[Metrics | None, UNLESS_NONE] = None


class Model(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str


class ModelList(BaseModel):
    """GET /v1/models."""

    object: Literal["list"] = "list"
    data: list[Model]

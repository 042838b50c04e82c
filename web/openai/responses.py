"""What OpenAI's clients are answered: whole completions and chunks of streams, of chats and of plain text."""

from typing import Literal

from pydantic import BaseModel

Reason = Literal["stop", "length"]


class TopLogprob(BaseModel):
    """A token that might have been said. `bytes` are its part of the text in UTF-8; `token` spells them out where they
    are no whole characters."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    """A token that was said."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """Of the tokens of a text or of a part of it."""

    content: list[TokenLogprob]
    refusal: None = None


class Message(BaseModel):
    """What the assistant said."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(BaseModel):
    """One of the texts."""

    index: int
    message: Message
    logprobs: ChatLogprobs | None
    finish_reason: Reason


class PredictionDetails(BaseModel):
    """Draft tokens that the target agreed with, and the others it looked at."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(BaseModel):
    """Tokens, whatever chunks they came in; a prompt counts once however many texts follow it."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    completion_tokens_details: PredictionDetails


class CompletionBase(BaseModel):
    """What all answers say."""

    id: str
    created: int
    model: str
    system_fingerprint: str


class ChatCompletion(CompletionBase):
    """POST /v1/chat/completions."""

    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]
    usage: Usage


class Delta(BaseModel):
    """What is new; the first one names the role."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(BaseModel):
    """A part of one of the texts."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: Reason | None


class ChatChunk(CompletionBase):
    """An event of a streamed chat completion."""

    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    choices: list[ChatChunkChoice]
    usage: Usage | None = None


class CompletionLogprobs(BaseModel):
    """Of the tokens of a text or of a part of it, in lists side by side; offsets are characters of the text."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """One of the texts, or in a stream a part of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Reason | None


class Completion(CompletionBase):
    """POST /v1/completions, and an event of a streamed one."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChoice]
    usage: Usage | None = None


class Model(BaseModel):
    """The target."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str


class ModelList(BaseModel):
    """GET /v1/models."""

    object: Literal["list"] = "list"
    data: list[Model]

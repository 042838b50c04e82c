"""Serve what evaluation tools ask of tokens, in vLLM's shape.

POST /tokenize      text or conversation -> token ids
POST /detokenize    token ids -> text
GET /tokenizer_info its special tokens and chat template, of which clients make prompts
"""

from typing import Self

from flask import Blueprint, Response
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StrictBool,
    ValidationError,
    field_validator,
    model_validator,
)

from app.answer_form import Tool
from app.errors import InvalidRequest
from app.request import MAX_CHARACTERS, MAX_MESSAGES, Conversation, TokenId, no_booleans
from web.api.http_io import body_of, json_answer
from web.errors import InvalidBody
from web.openai.answer import check_model
from web.openai.requests import Turn, given, turn_of
from workers.deployment import Deployment


class TokenBody(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str | None = None


class TokenizeBody(TokenBody):
    """POST /tokenize."""

    prompt: str | None = Field(None, max_length=MAX_CHARACTERS)
    messages: list[Turn] | None = Field(None, min_length=1, max_length=MAX_MESSAGES, description="instead of prompt")
    tools: list[Tool] | None = None
    chat_template_kwargs: dict[str, JsonValue] | None = None
    add_generation_prompt: StrictBool | None = None
    continue_final_message: StrictBool | None = None
    add_special_tokens: StrictBool = Field(True, description="of the model's, to a prompt; templates have their own")

    @model_validator(mode="after")
    def _one_input(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        return self


class Tokens(BaseModel):
    count: int
    max_model_len: int
    tokens: list[int]


class DetokenizeBody(TokenBody):
    """POST /detokenize."""

    tokens: list[TokenId] = Field(max_length=MAX_CHARACTERS)

    _numbers = field_validator("tokens", mode="before")(no_booleans)


class Detokenized(BaseModel):
    prompt: str


class TokenizerInfo(BaseModel):
    bos_token: str | None = None
    eos_token: str | None = None
    pad_token: str | None = None
    unk_token: str | None = None
    chat_template: str | None
    model_max_length: int


def _conversation(body: TokenizeBody, messages: list[Turn]) -> Conversation:
    names = ("tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message")
    try:
        return Conversation.model_validate({**given(body, names), "messages": [turn_of(one) for one in messages]})
    except ValidationError as error:
        raise InvalidBody(error) from error


def blueprint(deployment: Deployment) -> Blueprint:
    routes = Blueprint("tokens", __name__)
    tokenizer = deployment.tokenizer

    @routes.post("/tokenize")
    def tokenize() -> Response:
        body = body_of(TokenizeBody)
        check_model(deployment, body.model)
        if body.messages is None:
            ids = tokenizer.encode(body.prompt or "", special=body.add_special_tokens)
        else:
            ids, _ = tokenizer.conversation(_conversation(body, body.messages))
        return json_answer(Tokens(count=len(ids), max_model_len=tokenizer.context_tokens, tokens=ids))

    @routes.post("/detokenize")
    def detokenize() -> Response:
        body = body_of(DetokenizeBody)
        check_model(deployment, body.model)
        if max(body.tokens, default=0) >= tokenizer.vocab_size:
            raise InvalidRequest("tokens", f"token ids must be below {tokenizer.vocab_size}")
        return json_answer(Detokenized(prompt=tokenizer.decode(body.tokens)))

    @routes.get("/tokenizer_info")
    def tokenizer_info() -> Response:
        template, most = tokenizer.template_source, tokenizer.context_tokens
        info = {**tokenizer.special_tokens, "chat_template": template, "model_max_length": most}
        return json_answer(TokenizerInfo.model_validate(info))

    return routes

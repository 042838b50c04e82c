"""Serve Anthropic's calls.

POST /v1/messages                 go on with a conversation
POST /v1/messages/count_tokens    the prompt's tokens
"""

from flask import Blueprint, Response

from web.anthropic.requests import CountBody, MessagesBody
from web.anthropic.writer import MessageAnswer, MessageWriter, TokenCount
from web.api.http_io import HELLO, Operation, body_of, json_answer
from web.openai.answer import Answers, check_model


def blueprint(answers: Answers) -> Blueprint:
    routes = Blueprint("anthropic", __name__, url_prefix="/v1/messages")
    tokenizer = answers.deployment.tokenizer

    @routes.post("")
    @Operation(
        "Go on with a conversation, as at Anthropic",
        {200: MessageAnswer},
        MessagesBody,
        streams=True,
        example={"messages": HELLO, "max_tokens": 16},
    )
    def messages() -> Response:
        return answers.answer(body_of(MessagesBody), MessageWriter())

    @routes.post("/count_tokens")
    @Operation("Count a prompt's tokens, as at Anthropic", {200: TokenCount}, CountBody, example={"messages": HELLO})
    def count_tokens() -> Response:
        body = body_of(CountBody)
        check_model(answers.deployment, body.model)
        ids, _ = tokenizer.conversation(body.request().conversation)
        return json_answer(TokenCount(input_tokens=len(ids)))

    return routes

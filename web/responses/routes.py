"""Serve POST /v1/responses."""

from flask import Blueprint, Response

from web.api.http_io import Operation, body_of
from web.openai.answer import Answers
from web.responses.requests import ResponsesBody
from web.responses.writer import ItemWriter, ModelResponse


def blueprint(answers: Answers) -> Blueprint:
    routes = Blueprint("responses", __name__, url_prefix="/v1/responses")

    @routes.post("")
    @Operation(
        "Answer an input by items, none of them kept",
        {200: ModelResponse},
        ResponsesBody,
        streams=True,
        example={"input": "Hello"},
    )
    def respond() -> Response:
        body = body_of(ResponsesBody)
        return answers.answer(body, ItemWriter(body))

    return routes

"""Serve OpenAI's calls: parse, call the deployment, format.

GET  /v1/models, /v1/models/<name>     the target
POST /v1/chat/completions              continue a conversation
POST /v1/completions                   continue a text
"""

import time

from flask import Blueprint, Response

from web.api.http_io import HELLO, Operation, body_of, json_answer
from web.openai.answer import Answers, check_model
from web.openai.requests import ChatBody, CompletionBody
from web.openai.responses import ChatCompletion, Completion, Model, ModelList
from web.openai.writers import ChatWriter, CompletionWriter
from workers.deployment import Deployment


def blueprint(deployment: Deployment, answers: Answers) -> Blueprint:
    routes = Blueprint("v1", __name__, url_prefix="/v1")
    model = Model(id=deployment.settings.model_name, created=int(time.time()), owned_by="paceline")

    @routes.get("/models")
    @Operation("The target", {200: ModelList})
    def models() -> Response:
        return json_answer(ModelList(data=[model]))

    @routes.get("/models/<path:name>")
    @Operation("The target, by its name", {200: Model})
    def show_model(name: str) -> Response:
        check_model(deployment, name)
        return json_answer(model)

    @routes.post("/chat/completions")
    @Operation("Go on with a conversation", {200: ChatCompletion}, ChatBody, streams=True, example={"messages": HELLO})
    def chat() -> Response:
        body = body_of(ChatBody)
        return answers.answer(body, ChatWriter(body))

    @routes.post("/completions")
    @Operation("Go on with a text", {200: Completion}, CompletionBody, streams=True, example={"prompt": "Once"})
    def complete() -> Response:
        body = body_of(CompletionBody)
        return answers.answer(body, CompletionWriter(body), body.echoes)

    return routes

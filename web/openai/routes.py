"""Serve OpenAI's calls: parse, call the deployment, format.

GET  /v1/models, /v1/models/<name>     the target
POST /v1/chat/completions              continue a conversation
POST /v1/completions                   continue a text
"""

import time
from threading import Event as Flag

from flask import Blueprint, Response
from werkzeug.exceptions import ServiceUnavailable

from app.errors import InvalidRequest, UnknownModel
from app.messages import Record
from app.request import GenerateRequest
from web.api.disconnects import DisconnectWatcher
from web.api.http_io import Operation, body_of, client, event_stream, json_answer
from web.api.stream_limits import StreamLimits
from web.api.submit import submit
from web.auth import tenant
from web.openai.call import STOPPING, Call, frames, whole
from web.openai.requests import ChatBody, CompletionBody
from web.openai.responses import ChatCompletion, Completion, Model, ModelList
from web.openai.writers import ChatWriter, CompletionWriter, Head, ResponseWriter
from workers.deployment import Deployment


def blueprint(
    deployment: Deployment, disconnects: DisconnectWatcher, stream_limits: StreamLimits, stopping: Flag
) -> Blueprint:
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
    @Operation("Go on with a conversation", {200: ChatCompletion}, ChatBody, streams=True)
    def chat() -> Response:
        return _answer(deployment, body_of(ChatBody), ChatWriter(), disconnects, stream_limits, stopping)

    @routes.post("/completions")
    @Operation("Go on with a text", {200: Completion}, CompletionBody, streams=True)
    def complete() -> Response:
        return _answer(deployment, body_of(CompletionBody), CompletionWriter(), disconnects, stream_limits, stopping)

    return routes


def _answer(
    deployment: Deployment,
    body: ChatBody | CompletionBody,
    writer: ResponseWriter,
    disconnects: DisconnectWatcher,
    stream_limits: StreamLimits,
    stopping: Flag,
) -> Response:
    check_model(deployment, body.model)
    requests = body.requests(deployment.settings.max_tokens)
    records = _submit(deployment, requests, body.names())
    call = Call(
        records=records,
        prompts=len(records) // (body.n or 1),
        writer=writer,
        head=_head(deployment, writer, records[0]),
        with_usage=bool(body.stream_options and body.stream_options.include_usage),
    )
    watched = disconnects.watched(call.ids, client().is_gone)
    if body.stream:
        response = event_stream(frames(deployment, call, stopping, watched, client()))
        response.call_on_close(stream_limits.take(records[0].id, tenant()))  # one thread, however many texts
    else:
        with stream_limits.taken(records[0].id, tenant()):
            answer = whole(deployment, call, stopping, watched)
        if answer is None:
            raise ServiceUnavailable(STOPPING)
        response = json_answer(answer)
    response.headers["X-Request-Id"] = call.head.id
    return response


def check_model(deployment: Deployment, requested: str | None) -> None:
    """Raise UnknownModel for another name than the served one; None names it, too."""
    served = deployment.settings.model_name
    if requested not in (served, None):
        raise UnknownModel(str(requested), served)


def _submit(deployment: Deployment, requests: list[GenerateRequest], names: dict[str, str]) -> list[Record]:
    """Submit as `submit` does; errors name the caller's fields."""
    try:
        return submit(deployment, requests)
    except InvalidRequest as error:
        if error.field in names:
            raise InvalidRequest(names[error.field], error.message) from error
        raise


def _head(deployment: Deployment, writer: ResponseWriter, record: Record) -> Head:
    target = deployment.requests.target(record.id)
    return Head(
        id=writer.prefix + record.id,
        created=int(record.created_s),
        model=deployment.settings.model_name,
        system_fingerprint=f"fp_{target}" if target else None,
        tokenizer=deployment.tokenizer,
        top=record.logprobs,
    )

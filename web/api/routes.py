"""Serve the native JSON API: parse, call the deployment, format.

    POST   /api/generate                       Result when it is done; `stream`: events (web/api/sse.py);
                                               `wait: false`: 202 {id, url, stream_url} at once
    GET    /api/requests/<id>                  Result as it is now, `status` active while it runs
    GET    /api/requests/<id>/stream?offset=N  events after N generated tokens; Last-Event-ID has precedence
    DELETE /api/requests/<id>                  cancel; Result. An ended request stays as it is

A client that closes a waiting POST cancels the request. When the server stops, waiting callers get the 202 of `wait:
false`. With keys in use, a request of another tenant is unknown. A request that failed after acceptance is a Result,
too (200, `status` failed, `error`).
"""

from threading import Event as Flag

from flask import Blueprint, Response, request, url_for
from pydantic import ConfigDict, JsonValue, StrictBool

from app.errors import InvalidRequest, NotFound
from app.messages import FinishReason, Record, Result, Status
from app.request import GenerateRequest, Message
from app.store.protocol import Snapshot
from web.api.disconnects import DisconnectWatcher
from web.api.http_io import Operation, body_of, client, event_stream, json_answer
from web.api.request_events import await_end, current, shown
from web.api.sse import frames
from web.api.stream_limits import StreamLimits
from web.api.submit import submit
from web.auth import may_see, tenant
from workers.deployment import Deployment

OFFSET = {
    "name": "offset",
    "in": "query",
    "description": "go on after so many generated tokens; the header Last-Event-ID goes before it",
    "schema": {"type": "integer", "minimum": 0, "maximum": 999_999_999, "default": 0},
}
ONE_INPUT: dict[str, JsonValue] = {
    "oneOf": [
        {"required": ["prompt"], "properties": {"prompt": {"type": "string"}, "messages": {"type": "null"}}},
        {
            "required": ["messages"],
            "properties": {"messages": {"type": "array"}, "prompt": {"type": "null"}, "raw": {"const": False}},
        },
    ]
}


class GenerateBody(GenerateRequest):
    """A generate request and how its caller wants the answer. `stream` has precedence over `wait`."""

    model_config = ConfigDict(json_schema_extra=ONE_INPUT)

    stream: StrictBool = False
    wait: StrictBool = True

    def request(self) -> GenerateRequest:
        return GenerateRequest.model_construct(**{name: getattr(self, name) for name in GenerateRequest.model_fields})


class Accepted(Message):
    id: str
    url: str
    stream_url: str


def blueprint(
    deployment: Deployment, disconnects: DisconnectWatcher, stream_limits: StreamLimits, stopping: Flag
) -> Blueprint:
    routes = Blueprint("api", __name__, url_prefix="/api")

    @routes.post("/generate")
    @Operation("Generate a text", {200: Result, 202: Accepted}, GenerateBody, streams=True, example={"prompt": "Once"})
    def generate() -> Response:
        body = body_of(GenerateBody)
        record = submit(deployment, [body.request()])[0]
        if body.stream:
            response = event_stream(frames(deployment, record, (), stopping, client()))
            response.call_on_close(stream_limits.take(record.id, tenant()))
        elif body.wait and _await_end(deployment, record.id, disconnects, stream_limits, stopping):
            response = json_answer(current(deployment, record.id))
        else:
            response = json_answer(_accepted(record), 202)
        response.headers["Location"] = url_for("api.show", request_id=record.id)
        response.headers["X-Request-Id"] = record.id
        return response

    @routes.get("/requests/<request_id>")
    @Operation("A request as it stands", {200: Result})
    def show(request_id: str) -> Response:
        return json_answer(shown(deployment, _own(deployment, request_id)))

    @routes.get("/requests/<request_id>/stream")
    @Operation("Follow a request", {200: None}, streams=True, query=(OFFSET,))
    def stream(request_id: str) -> Response:
        offset = _offset()
        snapshot = _own(deployment, request_id)
        tokens, record = snapshot.tokens, snapshot.record
        # A Redis that lost its last second has fewer tokens than its client, until they come again.
        most = record.max_tokens if snapshot.status is Status.ACTIVE else len(tokens)
        if offset > most:
            raise InvalidRequest("offset", f"only {len(tokens)} tokens have been generated")
        release = stream_limits.take(request_id, tenant())
        response = event_stream(frames(deployment, record, tokens[:offset], stopping, client(), offset))
        response.call_on_close(release)
        return response

    @routes.delete("/requests/<request_id>")
    @Operation("Cancel a request", {200: Result})
    def cancel(request_id: str) -> Response:
        _own(deployment, request_id)
        deployment.requests.end(request_id, FinishReason.CANCELLED)
        return json_answer(current(deployment, request_id))

    return routes


def _await_end(
    deployment: Deployment, request_id: str, disconnects: DisconnectWatcher, stream_limits: StreamLimits, stopping: Flag
) -> bool:
    with stream_limits.taken(request_id, tenant()), disconnects.watched([request_id], client().is_gone):
        return await_end(deployment, [request_id], stopping)


def _own(deployment: Deployment, request_id: str) -> Snapshot:
    snapshot = deployment.requests.snapshot(request_id)
    if not may_see(snapshot.record):
        raise NotFound(request_id)
    return snapshot


def _offset() -> int:
    """A reconnecting EventSource repeats its URL and adds an id."""
    text = request.headers.get("Last-Event-ID") or request.args.get("offset", "0")
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise InvalidRequest("offset", "must be a number of tokens")
    return int(text)


def _accepted(record: Record) -> Accepted:
    return Accepted(
        id=record.id,
        url=url_for("api.show", request_id=record.id),
        stream_url=url_for("api.stream", request_id=record.id),
    )

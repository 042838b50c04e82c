"""GET /openapi.json: the two APIs as an OpenAPI document, made from the models that check what comes in and go out."""

from dataclasses import dataclass
from typing import Any, Literal

from flask import Blueprint, Response, jsonify
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from app.config import Settings
from app.messages import Result
from web.api.routes import Accepted, GenerateBody
from web.errors import ErrorAnswer, V1ErrorAnswer
from web.openai.requests import ChatBody, CompletionBody
from web.openai.responses import ChatCompletion, Completion, Model, ModelList
from workers.deployment import Deployment

REF = "#/components/schemas/{model}"
KEY = "key"  # name of the security scheme
STREAM = "text/event-stream"
OFFSET = {
    "name": "offset",
    "in": "query",
    "description": "go on after so many generated tokens; the header Last-Event-ID goes before it",
    "schema": {"type": "integer", "minimum": 0, "maximum": 999_999_999, "default": 0},
}
INPUTS = {"prompt": "string", "messages": "array"}  # of a native request: exactly one of them
REFUSALS = {
    401: "an API key is needed, or it is not known",
    404: "no such request or model",
    421: "the server does not go by the name in the Host header",
    429: "the queue is full, the key's limit is reached, or the request has too many readers; Retry-After says when to "
    "come back",
    503: "the store does not answer; Retry-After says when to come back",
}
BODY_REFUSALS = {
    400: "wrong input; `field` or `param` names it",
    413: "the body is larger than a mebibyte",
    415: "the body is not sent as application/json",
}


@dataclass(frozen=True)
class Operation:
    """A method of a path. `answers`: by status, of which 200 may be a stream too."""

    method: Literal["get", "post", "delete"]
    path: str
    summary: str
    answers: dict[int, type[BaseModel] | None]  # None: a stream alone
    body: type[BaseModel] | None = None
    streams: bool = False
    query: tuple[dict[str, Any], ...] = ()


OPERATIONS = (
    Operation(
        "post", "/api/generate", "Generate a text", {200: Result, 202: Accepted}, body=GenerateBody, streams=True
    ),
    Operation("get", "/api/requests/{request_id}", "A request as it stands", {200: Result}),
    Operation("delete", "/api/requests/{request_id}", "Cancel a request", {200: Result}),
    Operation(
        "get", "/api/requests/{request_id}/stream", "Follow a request", {200: None}, streams=True, query=(OFFSET,)
    ),
    Operation("get", "/v1/models", "The target", {200: ModelList}),
    Operation("get", "/v1/models/{name}", "The target, by its name", {200: Model}),
    Operation(
        "post", "/v1/chat/completions", "Go on with a conversation", {200: ChatCompletion}, ChatBody, streams=True
    ),
    Operation("post", "/v1/completions", "Go on with a text", {200: Completion}, CompletionBody, streams=True),
)


def blueprint(deployment: Deployment) -> Blueprint:
    """The one route."""
    routes = Blueprint("openapi", __name__)
    found = document(deployment.settings)

    @routes.get("/openapi.json")
    def show() -> Response:
        return jsonify(found)

    return routes


def document(settings: Settings) -> dict[str, Any]:
    """OpenAPI 3.1, of a server with these settings."""
    refs, schemas = _schemas()
    _bound(schemas, settings)
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation, refs)
    found: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "Paceline",
            "version": "1",
            "description": "Exact speculative generation: the native API below /api, OpenAI's below /v1.",
        },
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {KEY: {"type": "http", "scheme": "bearer"}}},
    }
    if settings.keys is not None:
        found["security"] = [{KEY: []}]
    return found


Refs = dict[tuple[type[BaseModel], str], dict[str, Any]]


def _schemas() -> tuple[Refs, dict[str, Any]]:
    """References to the models' schemas, and those."""
    wanted: dict[tuple[type[BaseModel], JsonSchemaMode], None] = {}
    for model in (GenerateBody, ChatBody, CompletionBody):
        wanted[model, "validation"] = None
    for operation in OPERATIONS:
        for answer in operation.answers.values():
            if answer is not None:
                wanted[answer, "serialization"] = None
    for error in (ErrorAnswer, V1ErrorAnswer):
        wanted[error, "serialization"] = None
    refs, definitions = models_json_schema(list(wanted), ref_template=REF)
    return {(model, mode): refs[model, mode] for model, mode in wanted}, definitions["$defs"]


def _bound(schemas: dict[str, Any], settings: Settings) -> None:
    """What bodies may say to this server: one input, its model, no more tokens than it gives."""
    schemas[GenerateBody.__name__]["oneOf"] = [
        {"required": [name], "properties": {name: {"type": kind}}} for name, kind in INPUTS.items()
    ]
    for body in (GenerateBody, ChatBody, CompletionBody):
        fields = schemas[body.__name__]["properties"]
        if "model" in fields:
            fields["model"]["enum"] = [settings.model_name]
        for name in fields.keys() & {"max_tokens", "max_completion_tokens"}:
            number = fields[name].get("anyOf", [fields[name]])[0]
            number["maximum"] = settings.max_tokens


def _operation(operation: Operation, refs: Refs) -> dict[str, Any]:
    names = [part.strip("{}") for part in operation.path.split("/") if part.startswith("{")]
    parameters = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    found: dict[str, Any] = {
        "summary": operation.summary,
        "parameters": [*parameters, *operation.query],
        "responses": _responses(operation, refs),
    }
    if operation.body is not None:
        content = {"application/json": {"schema": refs[operation.body, "validation"]}}
        found["requestBody"] = {"required": True, "content": content}
    return found


def _responses(operation: Operation, refs: Refs) -> dict[str, Any]:
    found = {}
    for status, model in operation.answers.items():
        content = {} if model is None else {"application/json": {"schema": refs[model, "serialization"]}}
        if operation.streams and status == 200:
            content[STREAM] = {}
        found[str(status)] = {"description": "done" if status == 200 else "accepted", "content": content}
    error = V1ErrorAnswer if operation.path.startswith("/v1") else ErrorAnswer
    refusals = REFUSALS | (BODY_REFUSALS if operation.body or operation.query else {})
    for status, text in refusals.items():
        content = {"application/json": {"schema": refs[error, "serialization"]}}
        found[str(status)] = {"description": text, "content": content}
    return found

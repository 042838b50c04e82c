"""Serve GET /openapi.json: the route table, and the models beside each route, as one document."""

import re
from typing import Any

from flask import Blueprint, Flask, Response, jsonify
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema
from werkzeug.routing import Rule

from app.config import Settings
from web.api.http_io import OPERATION, Operation
from web.errors import V1, error_model

APIS = ("/api/", f"{V1}/")
REF = "#/components/schemas/{model}"
KEY = "key"  # name of the security scheme
STREAM = "text/event-stream"
REFUSALS = {
    401: "the API key is missing or unknown",
    404: "the request or model does not exist",
    421: "the Host header names no host of this server",
    429: "the queue is full, the key's limit is reached, or too many streams are open; Retry-After says when to try "
    "again",
    503: "the store does not answer; Retry-After says when to try again",
}
BODY_REFUSALS = {
    400: "wrong input; `field` or `param` names it",
    413: "the body is larger than a mebibyte",
    415: "the body is not sent as application/json",
}


def blueprint(app: Flask, settings: Settings) -> Blueprint:
    routes = Blueprint("openapi", __name__)
    found = document(app, settings)

    @routes.get("/openapi.json")
    def show() -> Response:
        return jsonify(found)

    return routes


def document(app: Flask, settings: Settings) -> dict[str, Any]:
    rules = [rule for rule in app.url_map.iter_rules() if rule.rule.startswith(APIS)]
    operations = [(rule, _operation(app, rule)) for rule in rules]
    refs, schemas = _schemas(operations)
    for body in {operation.body for _, operation in operations if operation.body}:
        _bound(schemas[body.__name__]["properties"], settings)
    paths: dict[str, dict[str, Any]] = {}
    for rule, operation in operations:
        path = re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule)
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}:
            paths.setdefault(path, {})[method.lower()] = _described(rule, operation, refs, settings.model_name)
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


def _operation(app: Flask, rule: Rule) -> Operation:
    operation: Operation = getattr(app.view_functions[rule.endpoint], OPERATION)
    return operation


Refs = dict[tuple[type[BaseModel], str], dict[str, Any]]


def _schemas(described: list[tuple[Rule, Operation]]) -> tuple[Refs, dict[str, Any]]:
    wanted: list[tuple[type[BaseModel], JsonSchemaMode]] = []
    operations = [operation for _, operation in described]
    wanted += [(each.body, "validation") for each in operations if each.body is not None]
    wanted += [(answer, "serialization") for each in operations for answer in each.answers.values() if answer]
    wanted += [(error, "serialization") for error in dict.fromkeys(error_model(rule.rule) for rule, _ in described)]
    refs, definitions = models_json_schema(wanted, ref_template=REF)
    return {(model, mode): refs[model, mode] for model, mode in wanted}, definitions["$defs"]


def _bound(fields: dict[str, Any], settings: Settings) -> None:
    if "model" in fields:
        fields["model"]["enum"] = [settings.model_name]
    for name in fields.keys() & {"max_tokens", "max_completion_tokens", "max_output_tokens"}:
        number = fields[name].get("anyOf", [fields[name]])[0]
        number["maximum"] = settings.max_tokens


def _described(rule: Rule, operation: Operation, refs: Refs, model: str) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in sorted(rule.arguments)
    ]
    found: dict[str, Any] = {
        "summary": operation.summary,
        "parameters": [*parameters, *operation.query],
        "responses": _responses(rule, operation, refs),
    }
    if operation.body is not None:
        example = {**({"model": model} if "model" in operation.body.model_fields else {}), **(operation.example or {})}
        content = {"application/json": {"schema": refs[operation.body, "validation"], "example": example}}
        found["requestBody"] = {"required": True, "content": content}
    return found


def _responses(rule: Rule, operation: Operation, refs: Refs) -> dict[str, Any]:
    found = {}
    for status, model in operation.answers.items():
        content = {} if model is None else {"application/json": {"schema": refs[model, "serialization"]}}
        if operation.streams and status == 200:
            content[STREAM] = {}
        found[str(status)] = {"description": "done" if status == 200 else "accepted", "content": content}
    error = error_model(rule.rule)
    refusals = REFUSALS | (BODY_REFUSALS if operation.body or operation.query else {})
    for status, text in refusals.items():
        content = {"application/json": {"schema": refs[error, "serialization"]}}
        found[str(status)] = {"description": text, "content": content}
    return found

"""Test the OpenAPI document: it names every call, and no call that schemathesis makes of it is a server error."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
from flask import Flask
from hypothesis import HealthCheck, given, seed
from hypothesis import settings as pace
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from app.config import Settings
from tests.web.conftest import Deploy
from tests.web.doubles import ScriptedVerifier
from web.factory import create_app
from web.openapi import document
from workers.deployment import Deployment

# Without the check that all wrong input is refused: a number may come as text, as the page sends seeds.
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
CALLS = (
    "post /api/generate",
    "get /api/requests/{request_id}",
    "delete /api/requests/{request_id}",
    "get /api/requests/{request_id}/stream",
    "get /v1/models",
    "get /v1/models/{name}",
    "post /v1/chat/completions",
    "post /v1/completions",
    "post /v1/messages",
    "post /v1/messages/count_tokens",
    "post /v1/responses",
)
MODEL = "smollm2-135m"
EXAMPLES = 6  # an operation


@pytest.fixture
def app(deployment: Deployment, verifier: ScriptedVerifier) -> Iterator[Flask]:
    """Make an application whose requests are answered at once."""
    verifier.pause_s = 0.001
    del verifier.answer[6:]
    return create_app(deployment)


def test_the_document_names_every_call_of_the_apis(deploy: Deploy, settings: Settings) -> None:
    app = create_app(deploy())
    served = app.test_client().get("/openapi.json").json
    named = {(method, path) for path, methods in served["paths"].items() for method in methods}
    assert named == api_rules(app) == {tuple(call.split()) for call in CALLS}
    assert served == json.loads(json.dumps(document(app, settings)))
    assert "security" not in served
    assert document(app, settings.model_copy(update={"keys": Path("keys")}))["security"]
    fields = served["components"]["schemas"]["ChatBody"]["properties"]
    assert fields["model"]["enum"] == [MODEL]
    assert fields["max_tokens"]["anyOf"][0] == {"type": "integer", "minimum": 1, "maximum": settings.max_tokens}


def api_rules(app: Flask) -> set[tuple[str, str]]:
    """List method and path of each API's routes, in OpenAPI's spelling."""
    return {
        (method.lower(), rule.rule.replace("<path:", "<").replace("<", "{").replace(">", "}"))
        for rule in app.url_map.iter_rules()
        if rule.rule.startswith(("/api/", "/v1/"))
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }


@pytest.mark.parametrize("call", CALLS)
def test_no_call_is_a_server_error_and_answers_fit_the_document(call: str, app: Flask) -> None:
    method, path = call.split()
    api = schemathesis.openapi.from_wsgi("/openapi.json", app)[path][method.upper()]
    client = app.test_client()
    known = {"request_id": client.post("/api/generate", json={"prompt": "Hi"}).json["id"], "name": MODEL}
    described = client.get("/openapi.json").json["paths"][path][method]
    has_input = "requestBody" in described or any(one["in"] == "query" for one in described["parameters"])
    statuses: Counter[int] = Counter()
    if "requestBody" in described:
        example = described["requestBody"]["content"]["application/json"]["example"]
        answer = client.open(path, method=method.upper(), json=example)
        assert answer.status_code == 200, answer.json
        statuses[200] += 1
    for mode in GenerationMode.POSITIVE, GenerationMode.NEGATIVE:
        if mode is GenerationMode.NEGATIVE and not has_input:
            continue  # there is nothing that could be wrong

        @seed(1)
        @pace(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(case=api.as_strategy(generation_mode=mode))
        def holds(case: schemathesis.Case) -> None:
            statuses[case.call_and_validate(checks=CHECKS).status_code] += 1
            if case.path_parameters:
                case.path_parameters = {name: known[name] for name in case.path_parameters}
                statuses[case.call_and_validate(checks=CHECKS).status_code] += 1

        holds()
    print(call, dict(statuses))
    assert statuses[200]

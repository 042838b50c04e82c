"""The OpenAPI document says what there is, and nothing that schemathesis makes of it brings the server down."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
from flask import Flask
from flask.testing import FlaskClient
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
from tests.web.doubles import ScriptedVerifier
from web.factory import create_app
from web.openapi import OPERATIONS, Operation, document
from workers.deployment import Deployment

# Whether all that does not fit is refused is not asked: a number may come as text, as the page sends seeds.
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
MODEL = "smollm2-135m"
EXAMPLES = 10  # an operation


@pytest.fixture
def app(deployment: Deployment, verifier: ScriptedVerifier) -> Iterator[Flask]:
    """An application whose requests are answered at once."""
    verifier.pause_s = 0.001
    del verifier.answer[6:]
    return create_app(deployment)


def test_the_document_names_every_call_of_the_apis(client: FlaskClient, settings: Settings) -> None:
    rules = create_app_rules(client.application)
    named = {(operation.method, operation.path) for operation in OPERATIONS}
    assert named == rules
    served = client.get("/openapi.json").json
    assert served == json.loads(json.dumps(document(settings)))
    assert {(method, path) for path, methods in served["paths"].items() for method in methods} == rules
    assert "security" not in served
    assert document(settings.model_copy(update={"keys": Path("keys")}))["security"]
    fields = served["components"]["schemas"]["ChatBody"]["properties"]
    assert fields["model"]["enum"] == [MODEL]
    assert fields["max_tokens"]["anyOf"][0] == {"type": "integer", "minimum": 1, "maximum": settings.max_tokens}


def create_app_rules(app: Flask) -> set[tuple[str, str]]:
    """Method and path of each API's routes, in OpenAPI's spelling."""
    return {
        (method.lower(), rule.rule.replace("<path:", "<").replace("<", "{").replace(">", "}"))
        for rule in app.url_map.iter_rules()
        if rule.rule.startswith(("/api/", "/v1/"))
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: f"{operation.method} {operation.path}")
def test_no_call_is_a_fault_of_ours_and_all_answers_are_as_documented(operation: Operation, app: Flask) -> None:
    api = schemathesis.openapi.from_wsgi("/openapi.json", app)[operation.path][operation.method.upper()]
    known = {"request_id": app.test_client().post("/api/generate", json={"prompt": "Hi"}).json["id"], "name": MODEL}
    statuses: Counter[int] = Counter()
    for mode in GenerationMode.POSITIVE, GenerationMode.NEGATIVE:
        if mode is GenerationMode.NEGATIVE and not (operation.body or operation.query):
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
    print(operation.method, operation.path, dict(statuses))
    assert statuses[200]

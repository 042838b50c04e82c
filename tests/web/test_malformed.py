"""Test that malformed calls of every API are refused with the field's name, and none is a server error."""

import json
from typing import Any

import pytest
from flask.testing import FlaskClient

from bench.doors.cases import ROUTES, body_with
from tests.web.doubles import ScriptedVerifier
from tests.web.test_openapi import MODEL

WRONG = ('{"surprise": [null]}', "[[-7.5]]", '"\\u0000"')
TOOL = '[{"type":"function","function":{"name":"a"}}]'
OF_SEVERAL = [  # fields that are wrong beside another
    ("/v1/chat/completions", {"tool_choice": '"required"'}, "tool_choice"),
    ("/v1/chat/completions", {"min_tokens": "3"}, "min_tokens"),
    ("/v1/chat/completions", {"tools": TOOL, "ignore_eos": "true"}, "ignore_eos"),
    ("/v1/chat/completions", {"tools": TOOL, "allowed_token_ids": "[5]"}, "allowed_token_ids"),
    ("/v1/chat/completions", {"messages": '[{"role":"user","content":" "}]', "continue_final_message": "true"},
     "continue_final_message"),
    ("/v1/completions", {"echo": "true", "stream": "true"}, "echo"),
    ("/v1/responses", {"tool_choice": '{"type":"function","name":"x"}'}, "tool_choice"),
    ("/v1/messages", {"tool_choice": '{"type":"any"}'}, "tool_choice"),
    ("/api/generate", {"raw": "true", "messages": '[{"role":"user","content":"a"}]', "prompt": "null"}, "raw"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def brief(verifier: ScriptedVerifier) -> None:
    verifier.pause_s = 0.001
    del verifier.answer[:-1]


def refusal(client: FlaskClient, path: str, fields: dict[str, str]) -> tuple[int, str]:
    """Send fields' JSON texts beside the usual ones; return the status, and what the error names first."""
    usual = {name: text.replace('"?"', json.dumps(MODEL)) for name, text in ROUTES[path][1].items()}
    response = client.post(path, data=body_with(usual | fields), content_type="application/json")
    if response.status_code == 200:
        return 200, ""
    error: dict[str, Any] = response.json["error"]
    return response.status_code, error.get("param") or error.get("field") or error["message"]


def test_what_is_refused_is_named(client: FlaskClient) -> None:
    sent = [(path, field, text) for path, (body, _) in ROUTES.items() for field in body.model_fields for text in WRONG]
    found = [(one, *refusal(client, one[0], {one[1]: one[2]})) for one in sent]
    assert {status for _, status, _ in found} == {200, 400, 404}, [one for one in found if one[1] >= 500]
    assert {field for (_, field, _), status, _ in found if status == 404} == {"model"}
    refused = [one for one in found if one[1] == 400]
    assert len(refused) > 300
    unnamed = [one for one in refused if not f"{one[2]}.".startswith((f"{one[0][1]}.", f"{one[0][1]}:"))]
    assert unnamed == []


@pytest.mark.parametrize(("path", "fields", "name"), OF_SEVERAL)
def test_a_field_that_is_wrong_beside_another_is_named(
    client: FlaskClient, path: str, fields: dict[str, str], name: str
) -> None:
    status, named = refusal(client, path, fields)
    assert status == 400 and named.split(":")[0] == name

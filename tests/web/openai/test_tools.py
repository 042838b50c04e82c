"""Test calls of tools over a real store: whole and streamed calls agree, and wrong tools are refused by name."""

import json
from typing import Any

import pytest
from flask.testing import FlaskClient

from tests.web.conftest import CALLING
from tests.web.doubles import ScriptedVerifier
from tests.web.openai.test_call import CHAT, chat, chunks_of, error_of
from workers.deployment import Deployment

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "the weather", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "time"}},
]


def test_calls_are_the_same_whole_and_streamed(client: FlaskClient, calling: ScriptedVerifier) -> None:
    (choice,) = chat(client, tools=TOOLS)["choices"]
    message = choice["message"]
    assert choice["finish_reason"] == "tool_calls" and message["content"] == "Let me see."
    assert [(one["type"], one["function"]) for one in message["tool_calls"]] == [
        ("function", {"name": "get_weather", "arguments": '{"city": "Zürich 👩‍🚀"}'}),
        ("function", {"name": "time", "arguments": "{}"}),
    ]
    assert len({one["id"] for one in message["tool_calls"]}) == 2
    first, *parts, last = chunks_of(client.post("/v1/chat/completions", json={**CHAT, "tools": TOOLS, "stream": True}))
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert last["choices"][0]["finish_reason"] == "tool_calls" and last["choices"][0]["delta"] == {}
    deltas = [part["choices"][0]["delta"] for part in parts]
    assert "".join(delta.get("content", "") for delta in deltas) == "Let me see."
    calls: list[dict[str, Any]] = []
    for one in (call for delta in deltas for call in delta.get("tool_calls", ())):
        if "id" in one:
            assert one["index"] == len(calls) and one["type"] == "function"
            calls.append({"name": one["function"]["name"], "arguments": ""})
        calls[one["index"]]["arguments"] += one["function"]["arguments"]
    assert calls == [one["function"] for one in message["tool_calls"]]
    assert sum("tool_calls" in delta for delta in deltas) > 3, "arguments come in several pieces"


def test_the_native_result_has_the_calls_beside_the_whole_text(client: FlaskClient, calling: ScriptedVerifier) -> None:
    body = {"messages": CHAT["messages"], "tools": TOOLS, "max_tokens": 400}
    result = client.post("/api/generate", json=body).json
    assert result["text"] == CALLING and result["finish_reason"] == "stop"
    assert [one["function"]["name"] for one in result["tool_calls"]] == ["get_weather", "time"]
    plain = client.post("/api/generate", json={"prompt": "Hi", "max_tokens": 400}).json
    assert plain["text"] == CALLING and plain["tool_calls"] is None


def test_without_a_choice_of_tools_the_text_is_not_read_for_calls(
    client: FlaskClient, calling: ScriptedVerifier
) -> None:
    (choice,) = chat(client, tools=TOOLS, tool_choice="none")["choices"]
    assert choice["message"]["content"] == CALLING and choice["message"]["tool_calls"] is None
    assert choice["finish_reason"] == "stop"


def test_a_conversation_with_calls_and_results_goes_on(client: FlaskClient, calling: ScriptedVerifier) -> None:
    calls = chat(client, tools=TOOLS)["choices"][0]["message"]["tool_calls"]
    history = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "content": "sunny", "tool_call_id": calls[0]["id"]},
        {"role": "tool", "content": "noon", "tool_call_id": calls[1]["id"]},
    ]
    assert chat(client, messages=history, tools=TOOLS)["usage"]["prompt_tokens"] > 60


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "no"}}}]}, "tools"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "b"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "ignore_eos": True}, "ignore_eos"),
        ({"functions": [{"name": "a"}]}, "functions"),
        ({"messages": [{"role": "user", "content": "a", "tool_calls": [
            {"id": "a", "function": {"name": "time", "arguments": "{}"}}]}]}, "messages.0"),
        ({"messages": [{"role": "assistant", "content": None, "tool_calls": [
            {"id": "a", "function": {"name": "time", "arguments": "no"}}]}]},
         "messages.0.tool_calls.0.function.arguments"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs.choice"),
        ({"guided_regex": "a("}, "guided_regex"),
        ({"response_format": {"type": "regex"}}, "response_format"),
    ],
)  # fmt: skip
def test_wrong_tools_are_refused_by_name(client: FlaskClient, body: dict[str, Any], param: str) -> None:
    response = client.post("/v1/chat/completions", json={**CHAT, **body})
    error = error_of(response)
    assert response.status_code == 400, error
    assert error["param"] == param or str(error["param"]).startswith(f"{param}."), error


@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({"structured_outputs": {"choice": ["yes", 'n"o']}}, 'start: "yes" | "n\\"o"'),
        ({"guided_regex": "a/b\\/c"}, "start: /a\\/b\\/c/"),
        ({"guided_grammar": 'start: "a"'}, 'start: "a"'),
        ({"guided_json": json.dumps(SCHEMA)}, json.dumps(SCHEMA)),
        ({"structured_outputs": {"json": SCHEMA}}, json.dumps(SCHEMA)),
        ({"structured_outputs": {"json_object": True}}, '{"type": "object"}'),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA, "strict": True}}},
            json.dumps({**SCHEMA, "additionalProperties": False}),
        ),
    ],
)
def test_forms_of_answers_have_vllms_names_too(
    client: FlaskClient, deployment: Deployment, verifier: ScriptedVerifier, fields: dict[str, Any], grammar: str
) -> None:
    answer = chat(client, **fields)
    record = deployment.requests.snapshot(answer["id"].removeprefix("chatcmpl-")).record
    assert record.grammar is not None
    if grammar.startswith("{"):  # the client sorts keys
        assert json.loads(record.grammar) == json.loads(grammar)
    else:
        assert record.grammar == grammar

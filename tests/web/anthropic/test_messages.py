"""Test Anthropic's calls over a real store: whole and streamed answers agree, errors have Anthropic's shape."""

import json
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from app.api_keys import add_key
from tests.web.conftest import TEXT, Deploy
from tests.web.doubles import ScriptedVerifier
from tests.web.events import parse_text
from web.factory import create_app
from workers.deployment import Deployment

BODY = {"model": "smollm2-135m", "max_tokens": 400, "messages": [{"role": "user", "content": "Hi"}]}
TOOLS = [
    {
        "name": "get_weather",
        "description": "the weather",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        "cache_control": {"type": "ephemeral"},
    },
    {"name": "time", "input_schema": {"type": "object"}},
]


def send(client: FlaskClient, **body: Any) -> dict[str, Any]:
    response = client.post("/v1/messages?beta=true", json={**BODY, **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json
    return answer


def events(client: FlaskClient, **body: Any) -> list[dict[str, Any]]:
    response = client.post("/v1/messages", json={**BODY, **body, "stream": True})
    assert (response.status_code, response.mimetype) == (200, "text/event-stream")
    found = parse_text(response.text)
    assert [one.kind for one in found] == [one.data["type"] for one in found]
    return [one.data for one in found]


def joined(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join the events to blocks, as Anthropic's client does."""
    blocks: list[dict[str, Any]] = []
    written = ""
    for one in found:
        if one["type"] == "content_block_start":
            assert one["index"] == len(blocks)
            blocks.append(one["content_block"])
            written = ""
        elif one["type"] == "content_block_delta":
            assert one["index"] == len(blocks) - 1
            delta = one["delta"]
            if delta["type"] == "text_delta":
                blocks[-1]["text"] += delta["text"]
            else:
                written += delta["partial_json"]
        elif one["type"] == "content_block_stop" and blocks[-1]["type"] == "tool_use":
            blocks[-1]["input"] = json.loads(written)
    return blocks


def without_id(block: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in block.items() if name != "id"}


def test_a_text_is_the_same_whole_and_streamed(client: FlaskClient, verifier: ScriptedVerifier) -> None:
    answer = send(client, system=[{"type": "text", "text": "Be brief."}])
    assert answer["content"] == [{"type": "text", "text": TEXT}] and answer["id"].startswith("msg_")
    assert (answer["type"], answer["role"], answer["stop_reason"]) == ("message", "assistant", "end_turn")
    assert answer["usage"]["output_tokens"] == len(verifier.answer) and answer["usage"]["input_tokens"] > 10
    first, *rest, delta, last = events(client)
    assert first["type"] == "message_start" and first["message"]["content"] == []
    assert joined(rest) == answer["content"] and last == {"type": "message_stop"}
    assert delta["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert delta["usage"]["output_tokens"] == len(verifier.answer)


def test_a_stop_sequence_is_named(client: FlaskClient, verifier: ScriptedVerifier) -> None:
    answer = send(client, stop_sequences=["never", " matters"])
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", " matters")
    assert answer["content"][0]["text"] == TEXT[: TEXT.index(" matters")]
    *_, delta, _ = events(client, stop_sequences=[" matters"])
    assert delta["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": " matters"}


def test_calls_are_blocks_whole_and_streamed(client: FlaskClient, calling: ScriptedVerifier) -> None:
    answer = send(client, tools=TOOLS, tool_choice={"type": "auto"})
    text, weather, time = answer["content"]
    assert text == {"type": "text", "text": "Let me see."} and answer["stop_reason"] == "tool_use"
    assert (weather["name"], weather["input"]) == ("get_weather", {"city": "Zürich 👩‍🚀"})
    assert (time["name"], time["input"]) == ("time", {})
    streamed = joined(events(client, tools=TOOLS))
    assert [without_id(one) for one in streamed] == [without_id(one) for one in answer["content"]]


def test_a_conversation_with_results_goes_on(
    client: FlaskClient, deployment: Deployment, verifier: ScriptedVerifier
) -> None:
    history = [
        {"role": "user", "content": [{"type": "text", "text": "Weather?", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Hm", "signature": "x"},
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Zürich"}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "sunny"}]},
            {"type": "text", "text": "And now?"},
        ]},
    ]  # fmt: skip
    answer = send(client, messages=history, tools=TOOLS)
    record = deployment.requests.snapshot(answer["id"].removeprefix("msg_")).record
    prompt = deployment.tokenizer.decode(record.prompt_ids)
    places = [prompt.index(part) for part in ("the weather", "Weather?", "Let me see.", "Zürich", "sunny", "And now?")]
    assert places == sorted(places)
    count = client.post("/v1/messages/count_tokens", json={"model": BODY["model"], "messages": history, "tools": TOOLS})
    assert count.json == {"input_tokens": len(record.prompt_ids)}


def test_the_begin_of_an_answer_is_gone_on_with(
    client: FlaskClient, deployment: Deployment, verifier: ScriptedVerifier
) -> None:
    begun = [*BODY["messages"], {"role": "assistant", "content": "The answer is"}]
    record = deployment.requests.snapshot(send(client, messages=begun)["id"].removeprefix("msg_")).record
    assert deployment.tokenizer.decode(record.prompt_ids).endswith("The answer is")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages.0.content.0"),
        ({"messages": [{"role": "user", "content": [
            {"type": "tool_use", "id": "a", "name": "b", "input": {}}]}]}, "messages"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools.0"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "b"}}, "tool_choice"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"temperature": True}, "temperature"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_wrong_input_is_refused_in_anthropics_shape(
    client: FlaskClient, body: dict[str, Any], field: str, stream: bool
) -> None:
    response = client.post("/v1/messages", json={**BODY, **body, "stream": stream})
    assert response.status_code == 400, response.text
    answer = response.json
    assert answer["type"] == "error" and answer["error"]["type"] == "invalid_request_error"
    assert field in answer["error"]["message"], answer
    other = client.post("/v1/messages", json={**BODY, "model": "other"})
    assert other.status_code == 404 and other.json["error"]["type"] == "not_found_error"


def test_anthropics_header_has_the_key(deploy: Deploy, tmp_path: Path) -> None:
    file = tmp_path / "keys.jsonl"
    key = add_key(file, "alice")
    client = create_app(deploy(keys=file)).test_client()
    path = "/v1/messages/count_tokens"
    assert client.post(path, json=BODY).json["error"]["type"] == "authentication_error"
    assert client.post(path, json=BODY, headers={"X-Api-Key": key}).status_code == 200

"""Test the Responses API over a real store: whole and streamed answers agree, and OpenAI's own client reads both."""

from typing import Any

import pytest
from flask.testing import FlaskClient
from openai import OpenAI

from tests.web.conftest import TEXT, Server
from tests.web.doubles import ScriptedVerifier
from tests.web.events import parse_text
from workers.deployment import Deployment

MODEL = "smollm2-135m"
BODY = {"model": MODEL, "input": "Hi", "max_output_tokens": 400}
WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "the weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}
TOOLS = [WEATHER, {"type": "function", "name": "time"}]


def send(client: FlaskClient, **body: Any) -> dict[str, Any]:
    response = client.post("/v1/responses", json={**BODY, **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json
    return answer


def events(client: FlaskClient, **body: Any) -> list[dict[str, Any]]:
    response = client.post("/v1/responses", json={**BODY, **body, "stream": True})
    assert (response.status_code, response.mimetype) == (200, "text/event-stream")
    found = [one.data for one in parse_text(response.text)]
    assert [one["sequence_number"] for one in found] == [*range(len(found))]
    return found


def of_items(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return [{name: value for name, value in one.items() if name not in ("id", "call_id")} for one in answer["output"]]


def test_a_text_is_the_same_whole_and_streamed(client: FlaskClient, verifier: ScriptedVerifier) -> None:
    answer = send(client, instructions="Be brief.", metadata={"a": "b"}, store=True)
    (item,) = answer["output"]
    content = [{"type": "output_text", "text": TEXT, "annotations": [], "logprobs": []}]
    assert (item["type"], item["role"], item["content"]) == ("message", "assistant", content)
    assert (answer["status"], answer["instructions"], answer["store"]) == ("completed", "Be brief.", False)
    assert answer["usage"]["output_tokens"] == len(verifier.answer)
    first, second, *rest, last = events(client, instructions="Be brief.")
    assert (first["type"], second["type"], last["type"]) == (
        "response.created",
        "response.in_progress",
        "response.completed",
    )
    assert "".join(one["delta"] for one in rest if one["type"] == "response.output_text.delta") == TEXT
    assert of_items(last["response"]) == of_items(answer) and last["response"]["usage"] == answer["usage"]


def test_calls_are_items_whole_and_streamed(client: FlaskClient, calling: ScriptedVerifier) -> None:
    answer = send(client, tools=TOOLS)
    message, weather, time = answer["output"]
    assert message["content"][0]["text"] == "Let me see."
    assert (weather["type"], weather["name"], weather["arguments"]) == (
        "function_call",
        "get_weather",
        '{"city": "Zürich 👩‍🚀"}',
    )
    assert (time["name"], time["arguments"], time["status"]) == ("time", "{}", "completed")
    *_, last = events(client, tools=TOOLS)
    assert of_items(last["response"]) == of_items(answer)


def test_openais_client_reads_both(server: Server, calling: ScriptedVerifier) -> None:
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    whole = client.responses.create(model=MODEL, input="Hi", tools=[WEATHER], max_output_tokens=400)  # type: ignore[list-item]
    assert whole.output_text == "Let me see."
    with client.responses.stream(model=MODEL, input="Hi", tools=[WEATHER], max_output_tokens=400) as stream:  # type: ignore[list-item]
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert final.output_text == whole.output_text and "response.function_call_arguments.done" in kinds
    assert [one.type for one in final.output] == [one.type for one in whole.output]


def test_items_go_on_in_the_next_call(client: FlaskClient, deployment: Deployment, verifier: ScriptedVerifier) -> None:
    items = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "get_weather", "arguments": '{"city": "Ulm"}'},
        {"type": "function_call", "id": "fc_2", "call_id": "c2", "name": "time", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "noon"}]},
    ]
    answer = send(client, input=items, tools=TOOLS)
    record = deployment.requests.snapshot(answer["id"].removeprefix("resp_")).record
    prompt = deployment.tokenizer.decode(record.prompt_ids)
    places = [prompt.index(part) for part in ("Be brief.", "the weather", "Weather?", "Ulm", "sunny", "noon")]
    assert places == sorted(places)


def test_a_form_reaches_the_engine(client: FlaskClient, deployment: Deployment, verifier: ScriptedVerifier) -> None:
    form = {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": True}
    answer = send(client, text={"format": form})
    record = deployment.requests.snapshot(answer["id"].removeprefix("resp_")).record
    assert record.grammar == '{"type": "object"}' and answer["text"]["format"]["name"] == "x"


def test_an_empty_answer_is_an_empty_message_whole_and_streamed(
    client: FlaskClient, verifier: ScriptedVerifier
) -> None:
    del verifier.answer[:-1]  # the end token alone
    answer = send(client)
    assert [one["content"][0]["text"] for one in answer["output"]] == [""]
    *_, last = events(client)
    assert of_items(last["response"]) == of_items(answer)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "image"}]}, "input.0"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.message.content.0.type"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"max_output_tokens": 10**6}, "max_output_tokens"),
        ({"temperature": 99}, "temperature"),
        ({"logit_bias": {}}, "logit_bias"),
        ({"input": [{"type": "function_call", "call_id": "a", "name": "b", "arguments": "no"}]}, "input.0"),
    ],
)
def test_wrong_input_is_refused_by_name(client: FlaskClient, body: dict[str, Any], param: str) -> None:
    response = client.post("/v1/responses", json={**BODY, **body})
    assert response.status_code == 400, response.text
    assert str(response.json["error"]["param"]).startswith(param), response.json

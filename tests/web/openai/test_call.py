"""Test OpenAI's API over a real store: whole and streamed answers agree, errors have OpenAI's shape."""

import json
import socket
import threading
import time
from typing import Any

import pytest
from flask.testing import FlaskClient
from openai import OpenAI
from werkzeug.test import TestResponse

import web.api.request_events
from app.config import Settings
from app.engine.text.tokenizer import Tokenizer
from app.messages import FinishReason, Record
from tests.web.conftest import TEXT, Server
from tests.web.doubles import ROUND, ScriptedVerifier
from tests.web.events import parse_text
from web.factory import create_app
from workers.deployment import Deployment

MODEL = "smollm2-135m"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 500}
PLAIN = {"model": MODEL, "prompt": "Hi", "max_tokens": 500}
PATHS = {"/v1/chat/completions": CHAT, "/v1/completions": PLAIN}


def error_of(response: TestResponse) -> dict[str, Any]:
    assert response.mimetype == "application/json" and "Traceback" not in response.text
    error: dict[str, Any] = json.loads(response.text)["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    return error


def chunks_of(response: TestResponse) -> list[dict[str, Any]]:
    assert (response.status_code, response.mimetype) == (200, "text/event-stream")
    assert response.data.decode().endswith("data: [DONE]\n\n")
    frames = [frame for frame in response.text.split("\n\n") if frame.startswith("data: ")]
    return [json.loads(frame.removeprefix("data: ")) for frame in frames[:-1]]


def chat(client: FlaskClient, **body: Any) -> dict[str, Any]:
    response = client.post("/v1/chat/completions", json={**CHAT, **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json
    return answer


def test_a_chat_completion_has_openais_shape(client: FlaskClient, verifier: ScriptedVerifier) -> None:
    answer = chat(client)
    assert set(answer) == {"id", "object", "created", "model", "system_fingerprint", "choices", "usage", "metrics"}
    assert answer["id"].startswith("chatcmpl-") and answer["object"] == "chat.completion"
    assert abs(answer["created"] - time.time()) < 60 and answer["system_fingerprint"].startswith("fp_")
    message = {"role": "assistant", "content": TEXT, "reasoning_content": None, "tool_calls": None, "refusal": None}
    assert answer["choices"] == [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}]
    usage = answer["usage"]
    assert usage["completion_tokens"] == len(verifier.answer)
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
    native = client.get(f"/api/requests/{answer['id'].removeprefix('chatcmpl-')}").json
    details = usage["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] == native["speculation"]["accepted"] > 0
    assert sum(details.values()) == native["speculation"]["drafted"]


def test_an_answer_has_its_draft_tokens_by_round(client: FlaskClient, verifier: ScriptedVerifier) -> None:
    """AIPerf reads this, and drops what does not add up."""
    found = chat(client)
    details = found["usage"]["completion_tokens_details"]
    accepted, rounds = details["accepted_prediction_tokens"], -(-len(verifier.answer) // ROUND)
    last = len(verifier.answer) - ROUND * (rounds - 1) - 1
    histogram = [0] * ROUND
    histogram[ROUND - 1] += rounds - 1
    histogram[last] += 1
    assert found["metrics"]["speculative_decoding"] == {
        "mean_acceptance_length": 1 + accepted / rounds,
        "draft_acceptance_rate": accepted / (rounds * ROUND),
        "acceptance_histogram": histogram,
        "num_spec_steps": rounds,
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": rounds * ROUND,
        "num_spec_tokens": None,
    }
    assert "metrics" not in chat(client, n=2)


def test_a_streamed_chat_has_role_first_and_reason_last(client: FlaskClient, verifier: ScriptedVerifier) -> None:
    response = client.post("/v1/chat/completions", json={**CHAT, "stream": True})
    first, *parts, last = chunks_of(response)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert last["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}]
    assert all(list(part["choices"][0]["delta"]) == ["content"] for part in parts)
    assert "".join(part["choices"][0]["delta"]["content"] for part in parts) == TEXT
    assert len(parts) < len(verifier.answer), "several tokens a chunk"
    everything = [first, *parts, last]
    assert {chunk["object"] for chunk in everything} == {"chat.completion.chunk"}
    assert (
        len({(chunk["id"], chunk["created"], chunk["model"], chunk["system_fingerprint"]) for chunk in everything}) == 1
    )
    assert not any("usage" in chunk for chunk in everything)
    assert response.headers["X-Request-Id"] == first["id"]


def test_usage_is_a_chunk_of_its_own(client: FlaskClient, verifier: ScriptedVerifier) -> None:
    body = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = chunks_of(client.post("/v1/chat/completions", json=body))
    assert all(chunk["usage"] is None for chunk in chunks)
    whole = chat(client)
    assert last["choices"] == [] and last["usage"] == whole["usage"] and last["metrics"] == whole["metrics"]
    assert last["usage"]["completion_tokens"] == len(verifier.answer) > len(chunks)


def test_a_streamed_completion_equals_the_whole_one(client: FlaskClient, verifier: ScriptedVerifier) -> None:
    whole = client.post("/v1/completions", json=PLAIN).json
    assert whole["object"] == "text_completion" and whole["id"].startswith("cmpl-")
    assert whole["choices"] == [{"index": 0, "text": TEXT, "logprobs": None, "finish_reason": "stop"}]
    *chunks, last = chunks_of(client.post("/v1/completions", json={**PLAIN, "stream": True}))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == TEXT
    assert last["choices"] == [{"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"}]


def test_chunks_never_split_a_character(server: Server, verifier: ScriptedVerifier) -> None:
    """Read off the socket, byte by byte as it was written."""
    body = json.dumps({**CHAT, "stream": True}).encode()
    with socket.create_connection((server.host, server.port)) as connection:
        head = (
            f"POST /v1/chat/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        )
        connection.sendall(head.encode() + b"\r\n" + body)
        raw = b"".join(iter(lambda: connection.recv(7), b""))
    frames = [part for part in raw.split(b"\r\n\r\n", 1)[1].split(b"\n\n") if part.startswith(b"data: {")]
    texts = [json.loads(part[6:].decode())["choices"][0]["delta"].get("content", "") for part in frames]
    assert "".join(texts) == TEXT and not any("\ufffd" in text for text in texts)


@pytest.mark.parametrize("stop", ["日本", "\ufe0f", "flew, n", [" 日", "never"], "🚀", "G", "done"])
def test_a_stop_string_is_no_part_of_either_text(client: FlaskClient, verifier: ScriptedVerifier, stop: Any) -> None:
    ends = [TEXT.find(one) for one in ([stop] if isinstance(stop, str) else stop)]
    expected = TEXT[: min((end for end in ends if end >= 0), default=len(TEXT))]
    assert chat(client, stop=stop)["choices"][0]["message"]["content"] == expected
    chunks = chunks_of(client.post("/v1/chat/completions", json={**CHAT, "stop": stop, "stream": True}))
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == expected
    native = client.post("/api/generate", json={"prompt": "Hi", "stop": stop, "max_tokens": 500}).json
    assert native["text"] == expected


@pytest.mark.parametrize("stop", [None, "naïvely", "👩"])
def test_logprobs_are_of_the_texts_tokens(client: FlaskClient, verifier: ScriptedVerifier, stop: str | None) -> None:
    ask = {**CHAT, "logprobs": True, "top_logprobs": 2, "stop": stop}
    whole = chat(client, **ask)["choices"][0]
    content = whole["logprobs"]["content"]
    spoken = b"".join(bytes(one["bytes"] or ()) for one in content)
    text = whole["message"]["content"].encode()
    assert spoken == text if stop is None else spoken.startswith(text) and len(spoken) < len(text) + 8
    assert all(one["logprob"] == -0.7 and len(one["top_logprobs"]) == 2 for one in content)
    assert content[0]["top_logprobs"][1] == {"token": "!", "logprob": -0.7, "bytes": [33]}
    first = TEXT[: len(content[0]["bytes"])]
    assert content[0]["token"] == first
    assert stop is not None or any(one["token"].startswith("bytes:\\x") for one in content)
    chunks = chunks_of(client.post("/v1/chat/completions", json={**ask, "stream": True}))
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [one for part in parts if part for one in part["content"]] == content
    plain = client.post("/v1/completions", json={**PLAIN, "logprobs": 1, "stop": stop}).json["choices"][0]["logprobs"]
    assert plain["tokens"] == [one["token"] for one in content]
    assert plain["text_offset"][:2] == [0, len(first)] and plain["top_logprobs"][0] == {first: -0.7}


def test_the_native_stream_has_logprobs_on_request(client: FlaskClient, verifier: ScriptedVerifier) -> None:
    events = parse_text(client.post("/api/generate", json={"prompt": "Hi", "stream": True, "logprobs": 1}).text)
    *tokens, end = events
    found = [one for event in tokens for one in event.data["logprobs"]]
    assert found == end.data["logprobs"] and len(found) == len(end.data["token_ids"])
    assert found[0] == {"logprob": -0.7, "top": [[verifier.answer[0], -0.7]]}


def test_several_texts_of_a_call_are_requests_of_one_seed(
    client: FlaskClient, verifier: ScriptedVerifier, deployment: Deployment
) -> None:
    answer = chat(client, n=3, seed=5, max_tokens=7)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    records = [deployment.requests.snapshot(request_id).record for request_id in verifier.seen]
    assert sorted((record.sampling.seed, record.sampling.choice) for record in records) == [(5, 0), (5, 1), (5, 2)]
    assert answer["usage"]["prompt_tokens"] == len(records[0].prompt_ids)
    assert answer["usage"]["completion_tokens"] == 3 * 7
    chunks = chunks_of(client.post("/v1/chat/completions", json={**CHAT, "n": 3, "stream": True}))
    for i in range(3):
        mine = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == i]
        assert mine[0]["delta"]["role"] == "assistant" and mine[-1]["finish_reason"] == "stop"
        assert "".join(choice["delta"].get("content", "") for choice in mine) == TEXT


def test_a_completion_answers_several_prompts(
    client: FlaskClient, verifier: ScriptedVerifier, deployment: Deployment
) -> None:
    answer = client.post("/v1/completions", json={**PLAIN, "prompt": ["one", "two three"], "n": 2}).json
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    lengths = [len(deployment.tokenizer.encode(prompt)) for prompt in ("one", "two three")]
    assert answer["usage"]["prompt_tokens"] == sum(lengths)
    refused = client.post("/v1/completions", json={**PLAIN, "prompt": ["a"] * 9, "n": 2})
    assert error_of(refused)["param"] == "prompt"


def submitted(client: FlaskClient, deployment: Deployment, path: str, **body: Any) -> Record:
    """Make a call whose client does not wait; return its record."""
    response = client.post(path, json={**PATHS[path], **body, "stream": True})
    assert response.status_code == 200, response.text
    (orphan,) = deployment.requests.orphans()
    record = deployment.requests.snapshot(orphan.request_id).record
    response.close()
    return record


def test_parameters_reach_the_engine(client: FlaskClient, deployment: Deployment) -> None:
    record = submitted(
        client, deployment, "/v1/chat/completions",
        temperature=0.5, top_p=0.9, seed=-3, frequency_penalty=0.25, presence_penalty=-0.5, logit_bias={"7": -100},
        stop="x", logprobs=True, top_logprobs=4, max_completion_tokens=11, top_k=9, min_p=0.1, speculation=False,
    )  # fmt: skip
    sampling = record.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 9, 0.1)
    assert (sampling.frequency_penalty, sampling.presence_penalty, sampling.logit_bias) == (0.25, -0.5, {7: -100.0})
    assert (sampling.seed, record.max_tokens) == (2**63 - 3, 11)
    assert (record.stop, record.logprobs, record.speculation.enabled) == (("x",), 4, False)


NEUTRAL = {  # what load generators and evaluation tools always send
    "repetition_penalty": 1.0, "length_penalty": 1, "use_beam_search": False, "best_of": 1, "echo": False, "top_k": -1,
    "skip_special_tokens": True, "spaces_between_special_tokens": True, "include_stop_str_in_output": False,
    "min_tokens": 0, "stop_token_ids": [], "prompt_logprobs": None, "return_token_ids": False, "priority": 0,
    "add_special_tokens": True, "structured_outputs": None, "guided_json": None, "include_reasoning": True,
    "bad_words": [], "cache_salt": "a", "return_tokens_as_token_ids": False,
}  # fmt: skip
UNSERVED = {
    "use_beam_search": True, "best_of": 2, "skip_special_tokens": False,
    "prompt_logprobs": 1, "truncate_prompt_tokens": 5, "include_reasoning": False, "bad_words": ["no"],
    "logprob_token_ids": [5],
}  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_a_field_that_asks_for_nothing_is_taken(client: FlaskClient, deployment: Deployment, path: str) -> None:
    record = submitted(client, deployment, path, **NEUTRAL)
    assert (record.sampling.top_k, record.min_tokens, record.eos_ids) == (0, 0, deployment.tokenizer.eos_ids)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", UNSERVED)
def test_a_field_that_is_not_served_is_refused_by_name(client: FlaskClient, path: str, name: str) -> None:
    response = client.post(path, json={**PATHS[path], name: UNSERVED[name]})
    assert response.status_code == 400 and error_of(response)["param"] == name


@pytest.mark.parametrize("path", PATHS)
def test_what_ends_a_text_reaches_the_engine(client: FlaskClient, deployment: Deployment, path: str) -> None:
    record = submitted(client, deployment, path, ignore_eos=True, min_tokens=9, stop_token_ids=[40, 41])
    assert (record.eos_ids, record.min_tokens) == ((40, 41), 9)
    wrong = client.post(path, json={**PATHS[path], "stop_token_ids": [10**9]})
    assert error_of(wrong)["param"] == "stop_token_ids"
    assert client.post(path, json={**PATHS[path], "min_tokens": 501}).status_code == 400


def test_an_echo_has_the_prompt_and_its_logprobs(client: FlaskClient, verifier: ScriptedVerifier) -> None:
    prompt = verifier.deployment.tokenizer.encode("Größe 👩‍🚀 of")
    body = {**PLAIN, "prompt": prompt, "echo": True, "logprobs": 2}
    (choice,) = client.post("/v1/completions", json=body).json["choices"]
    logprobs = choice["logprobs"]
    assert choice["text"] == "Größe 👩‍🚀 of" + TEXT
    assert logprobs["token_logprobs"][0] is logprobs["top_logprobs"][0] is None
    assert len(logprobs["tokens"]) == len(prompt) + len(verifier.answer), "the end token's, too"
    assert logprobs["tokens"][-1] == "<|im_end|>" and logprobs["text_offset"][-1] == len(choice["text"])
    assert {len(values) for values in logprobs.values()} == {len(logprobs["tokens"])}
    assert logprobs["token_logprobs"][1 : len(prompt)] == [-0.5 * i for i in range(1, len(prompt))]
    assert logprobs["text_offset"][len(prompt)] == len("Größe 👩‍🚀 of")
    alone = client.post("/v1/completions", json={**body, "max_tokens": 0}).json
    assert alone["choices"][0]["text"] == "Größe 👩‍🚀 of" and alone["usage"]["completion_tokens"] == 0
    assert alone["choices"][0]["logprobs"]["token_logprobs"] == logprobs["token_logprobs"][: len(prompt)]
    for wrong in ({"stream": True}, {"echo": False, "max_tokens": 0}):
        assert client.post("/v1/completions", json={**body, **wrong}).status_code == 400
    assert client.post("/v1/chat/completions", json={**CHAT, "echo": True}).status_code == 400


@pytest.mark.parametrize("path", PATHS)
def test_token_ids_are_those_of_the_request_whole_and_streamed(
    client: FlaskClient, verifier: ScriptedVerifier, path: str
) -> None:
    """As at vLLM: a chat's prompt stands at the root, a completion's in its choice; a stream has each once."""
    body = {**PATHS[path], "return_token_ids": True, "return_tokens_as_token_ids": True}
    body["logprobs"] = True if path == "/v1/chat/completions" else 1
    whole = client.post(path, json=body).json
    record = verifier.deployment.requests.snapshot(verifier.seen[0]).record
    (choice,) = whole["choices"]
    holder = whole if path == "/v1/chat/completions" else choice
    assert (holder["prompt_token_ids"], choice["token_ids"]) == ([*record.prompt_ids], verifier.answer)
    logprobs = choice["logprobs"]
    names = logprobs["tokens"] if "tokens" in logprobs else [one["token"] for one in logprobs["content"]]
    assert names == [f"token_id:{token}" for token in verifier.answer]
    chunks = chunks_of(client.post(path, json={**body, "stream": True}))
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [token for one in choices for token in one.get("token_ids", ())] == verifier.answer
    prompts = [one["prompt_token_ids"] for one in (*chunks, *choices) if "prompt_token_ids" in one]
    assert prompts == [[*record.prompt_ids]]
    assert "token_ids" not in client.post(path, json=PATHS[path]).text


def test_a_completion_goes_on_from_token_ids(client: FlaskClient, verifier: ScriptedVerifier) -> None:
    answer = client.post("/v1/completions", json={**PLAIN, "prompt": [[5, 6], [7, 8, 9]]}).json
    assert len(answer["choices"]) == 2 and answer["usage"]["prompt_tokens"] == 5
    for wrong in ([], [[]], [5, "a"], [[5], "a"], [True], [-1], [10**9]):
        response = client.post("/v1/completions", json={**PLAIN, "prompt": wrong})
        assert response.status_code == 400 and error_of(response)["param"].split(".")[0] == "prompt", wrong


def test_token_ids_reach_the_engine_as_they_are(client: FlaskClient, deployment: Deployment) -> None:
    assert submitted(client, deployment, "/v1/completions", prompt=[5, 6, 7]).prompt_ids == (5, 6, 7)


def test_defaults_are_openais(client: FlaskClient, deployment: Deployment, settings: Settings) -> None:
    nulls = dict.fromkeys(("n", "stop", "seed", "temperature", "stream_options", "response_format", "top_p"))
    chatted = submitted(client, deployment, "/v1/chat/completions", max_tokens=None, **nulls)
    assert (chatted.sampling.temperature, chatted.max_tokens) == (1.0, settings.max_tokens)
    assert (chatted.logprobs, chatted.stop, chatted.grammar) == (None, (), None)
    plain = submitted(client, deployment, "/v1/completions", max_tokens=None)
    assert plain.max_tokens == 16 and plain.prompt_ids == tuple(deployment.tokenizer.encode("Hi"))


def test_content_parts_and_developer_roles_are_accepted(client: FlaskClient, deployment: Deployment) -> None:
    parts = [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief"}]
    messages = [{"role": "developer", "content": parts, "name": "dev"}, {"role": "user", "content": "Hi"}]
    plain = [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hi"}]
    found = submitted(client, deployment, "/v1/chat/completions", messages=messages)
    assert found.prompt_ids == submitted(client, deployment, "/v1/chat/completions", messages=plain).prompt_ids


@pytest.mark.parametrize("path", PATHS)
def test_response_formats_reach_the_engine(client: FlaskClient, deployment: Deployment, path: str) -> None:
    schema = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {}}}
    named = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}
    record = submitted(client, deployment, path, response_format=named)
    assert json.loads(record.grammar or "") == {**schema, "additionalProperties": False}
    record = submitted(client, deployment, path, response_format={"type": "json_object"})
    assert json.loads(record.grammar or "") == {"type": "object"}
    assert submitted(client, deployment, path, response_format={"type": "text"}).grammar is None


def test_fields_without_effect_are_ignored(client: FlaskClient, deployment: Deployment) -> None:
    harmless = {
        "user": "me",
        "store": True,
        "metadata": {"a": "b"},
        "parallel_tool_calls": True,
        "service_tier": "auto",
    }
    empty = {"tools": [], "tool_choice": "none", "modalities": ["text"], "functions": None}
    assert submitted(client, deployment, "/v1/chat/completions", **harmless, **empty)


@pytest.mark.parametrize(
    ("path", "body", "param", "code"),
    [
        ("/v1/chat/completions", {"messages": None}, "messages", "invalid_value"),
        ("/v1/chat/completions", {"messages": []}, "messages", "invalid_value"),
        ("/v1/chat/completions", {"messages": [{"role": "wizard", "content": ""}]}, "messages.0.role", "invalid_value"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages.0.content",
            "invalid_value",
        ),
        ("/v1/chat/completions", {"tools": [{"type": "function"}]}, "tools.0.function", "missing_required_parameter"),
        ("/v1/chat/completions", {"audio": {}}, "audio", "unsupported_parameter"),
        ("/v1/chat/completions", {"top_logprobs": 3}, "top_logprobs", "unsupported_parameter"),
        ("/v1/chat/completions", {"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
        ("/v1/chat/completions", {"n": 0}, "n", "invalid_value"),
        ("/v1/chat/completions", {"n": 17}, "n", "invalid_value"),
        ("/v1/chat/completions", {"temperature": -1}, "temperature", "invalid_value"),
        ("/v1/chat/completions", {"stop": [""]}, "stop.0", "invalid_value"),
        ("/v1/chat/completions", {"stop": ["x"] * 17}, "stop", "invalid_value"),
        ("/v1/chat/completions", {"temprature": 1}, "temprature", "unknown_parameter"),
        ("/v1/chat/completions", {"max_tokens": 501}, "max_tokens", "invalid_value"),
        ("/v1/chat/completions", {"max_completion_tokens": 501}, "max_completion_tokens", "invalid_value"),
        ("/v1/chat/completions", {"logit_bias": {"99999": 1}}, "logit_bias", "invalid_value"),
        ("/v1/chat/completions", {"response_format": {"type": "json_schema"}}, "response_format", "invalid_value"),
        (
            "/v1/chat/completions",
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}},
            "response_format",
            "invalid_value",
        ),
        ("/v1/completions", {"prompt": [1, "a"]}, "prompt", "invalid_value"),
        ("/v1/completions", {"speculation": {"enabled": "perhaps"}}, "speculation.enabled", "invalid_value"),
        ("/v1/completions", {"stop": 5}, "stop", "invalid_value"),
        ("/v1/completions", {"prompt": []}, "prompt", "unsupported_parameter"),
        ("/v1/completions", {"prompt": ""}, "prompt", "invalid_value"),
        ("/v1/completions", {"best_of": 3}, "best_of", "unsupported_parameter"),
        ("/v1/completions", {"suffix": "end"}, "suffix", "unsupported_parameter"),
    ],
)
def test_bad_input_names_its_parameter(
    client: FlaskClient, deployment: Deployment, path: str, body: dict[str, Any], param: str, code: str
) -> None:
    response = client.post(path, json={**PATHS[path], **body})
    assert response.status_code == 400
    error = error_of(response)
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)
    assert deployment.requests.active() == 0


def test_a_missing_field_is_named(client: FlaskClient) -> None:
    error = error_of(client.post("/v1/chat/completions", json={"messages": CHAT["messages"]}))
    assert (error["param"], error["code"]) == ("model", "missing_required_parameter")


def test_other_errors_have_openais_shape_too(client: FlaskClient, settings: Settings) -> None:
    unknown = client.post("/v1/chat/completions", json={**CHAT, "model": "gpt-9"})
    assert unknown.status_code == 404 and error_of(unknown)["code"] == "model_not_found"
    assert client.get("/v1/models/gpt-9").status_code == 404
    nowhere = client.get("/v1/nothing")
    assert nowhere.status_code == 404 and error_of(nowhere)["type"] == "invalid_request_error"
    wrong = client.get("/v1/completions")
    assert wrong.status_code == 405 and "POST" in wrong.headers["Allow"] and error_of(wrong)
    assert error_of(client.post("/v1/completions", data="{", content_type="application/json"))["param"] is None
    text = client.post("/v1/completions", data="{}", content_type="text/plain")
    assert text.status_code == 415 and error_of(text)
    assert "field" in client.get("/api/nothing").json["error"], "below /api they are as they were"


def test_a_refused_call_leaves_no_request_behind(
    client: FlaskClient, deployment: Deployment, settings: Settings
) -> None:
    """Seven of eight places are taken; a call for two texts gets none."""
    for _ in range(settings.max_active_requests - 1):
        client.post("/api/generate", json={"prompt": "Hi", "wait": False})
    response = client.post("/v1/chat/completions", json={**CHAT, "n": 2})
    assert response.status_code == 429 and int(response.headers["Retry-After"]) >= 1
    assert error_of(response)["type"] == "rate_limit_error"
    assert deployment.requests.active() == settings.max_active_requests - 1


def test_a_failed_request_is_an_error_in_both_forms(client: FlaskClient, verifier: ScriptedVerifier) -> None:
    verifier.fail = "the request took three verifiers down"
    whole = client.post("/v1/chat/completions", json=CHAT)
    assert whole.status_code == 500 and error_of(whole)["message"] == verifier.fail
    streamed = client.post("/v1/chat/completions", json={**CHAT, "stream": True}).text
    *_, last = [frame for frame in streamed.split("\n\n") if frame]
    assert json.loads(last.removeprefix("data: "))["error"]["message"] == verifier.fail


def test_a_cancelled_call_is_nobodys_error(
    client: FlaskClient, deployment: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    """As if its client had left."""

    def cancel() -> None:
        while not (orphans := deployment.requests.orphans()):
            time.sleep(0.005)
        deployment.requests.end(orphans[0].request_id, FinishReason.CANCELLED)

    caplog.set_level("INFO")
    leaving = threading.Thread(target=cancel)
    leaving.start()
    response = client.post("/v1/chat/completions", json=CHAT)
    leaving.join()
    assert response.status_code == 499 and error_of(response)["message"] == "the request was cancelled"
    (line,) = [record for record in caplog.records if record.name == "web.errors"]
    assert line.levelname == "INFO" and line.exc_info is None


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("n", [1, 2])
def test_a_stopping_server_cancels_openai_calls_with_an_error(
    deployment: Deployment, is_stream: bool, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web.api.request_events, "POLL_S", 0.1)
    stopping = threading.Event()
    client = create_app(deployment, stopping).test_client()
    stop = threading.Timer(0.2, stopping.set)
    stop.start()
    response = client.post("/v1/completions", json={"model": MODEL, "prompt": "Hi", "stream": is_stream, "n": n})
    assert "the server is stopping" in response.text and "[DONE]" not in response.text
    assert response.status_code == (200 if is_stream else 503)
    assert deployment.requests.active() == 0
    stop.join()


@pytest.mark.parametrize("is_talking", [True, False], ids=["between tokens", "in silence"])
def test_a_client_that_closes_a_stream_cancels_all_its_texts(
    server: Server, deployment: Deployment, tokenizer: Tokenizer, is_talking: bool
) -> None:
    with ScriptedVerifier(deployment, tokenizer.encode("on and on " * 400), pause_s=0.05) as verifier:
        with OpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=0) as openai:
            stream = openai.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "Hi"}], max_tokens=500, n=2, stream=True
            )
            parts = 0
            for chunk in stream:
                parts += bool(chunk.choices[0].delta.content)
                if parts == 3:
                    break
            if not is_talking:
                verifier.going.clear()
                time.sleep(0.3)  # what was on its way has come
            stream.close()
        deadline = time.monotonic() + 5.0  # a heartbeat would find out, too: after ten seconds
        while deployment.requests.active():
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert {deployment.requests.snapshot(request_id).status.value for request_id in verifier.seen} == {"cancelled"}


def test_the_model_is_listed(client: FlaskClient) -> None:
    listed = client.get("/v1/models").json
    assert listed["object"] == "list" and [model["id"] for model in listed["data"]] == [MODEL]
    assert client.get(f"/v1/models/{MODEL}").json == listed["data"][0]


def test_the_calls_of_open_webui_are_answered(client: FlaskClient, verifier: ScriptedVerifier) -> None:
    """Recorded from its 0.12.4: the list of models, a chat with its settings, its tasks, going on with an answer."""
    model = client.get("/v1/models").json["data"][0]["id"]
    turn = {"role": "user", "content": [{"type": "text", "text": "Hi"}]}
    asked = {"model": model, "messages": [{"role": "system", "content": "Be brief."}, turn]}
    params = {
        "temperature": 0.8, "top_p": 0.9, "min_p": 0.0, "max_tokens": 128, "frequency_penalty": 0.0, "seed": 0,
        "presence_penalty": 0.0, "stop": ["\n\nUser:"], "logit_bias": {"5": -100}, "reasoning_effort": "low",
    }  # fmt: skip
    chat_body = {**asked, **params, "stream": True, "stream_options": {"include_usage": True}}
    *parts, last = chunks_of(client.post("/v1/chat/completions", json=chat_body))
    assert "".join(part["choices"][0]["delta"].get("content", "") for part in parts) == TEXT and last["usage"]
    begun = {"role": "assistant", "content": "Grö", "reasoning_content": "Hm.", "id": "a", "timestamp": 1}
    more = {"continue_final_message": True, "add_generation_prompt": False}
    going = {**asked, "messages": [*asked["messages"], begun], "stream": False, **more}
    for body in ({**asked, "stream": False, "max_tokens": 400}, {**asked, "stream": False}, going):
        assert client.post("/v1/chat/completions", json=body).json["choices"][0]["message"]["content"] == TEXT


def test_a_server_that_stops_says_when_to_come_back(deployment: Deployment) -> None:
    stopping = threading.Event()
    stopping.set()
    response = create_app(deployment, stopping).test_client().post("/v1/chat/completions", json=CHAT)
    assert response.status_code == 503
    assert int(response.headers["Retry-After"]) >= 1

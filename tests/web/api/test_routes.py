"""Test the JSON API over a real store: every route gives the same result, every error is explained."""

import gzip
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import redis
from flask.testing import FlaskClient
from kombu.exceptions import OperationalError
from werkzeug.test import TestResponse

from app.config import Settings
from app.engine.text.tokenizer import Tokenizer
from app.messages import Record
from app.request import GenerateRequest
from tests.web.conftest import TEXT, Deploy
from tests.web.doubles import ScriptedVerifier
from web.factory import create_app
from workers.deployment import Deployment

RESULT_FIELDS = {
    "id",
    "status",
    "text",
    "token_ids",
    "finish_reason",
    "usage",
    "timing",
    "speculation",
    "logprobs",
    "prompt_logprobs",
    "tool_calls",
    "error",
}


def error_of(response: TestResponse) -> dict[str, Any]:
    assert response.mimetype == "application/json"
    assert "Traceback" not in response.text
    error: dict[str, Any] = json.loads(response.text)["error"]
    assert set(error) == {"message", "field", "details"}
    return error


def accepted(client: FlaskClient, **body: Any) -> dict[str, str]:
    response = client.post("/api/generate", json={"prompt": "Hi", "wait": False, **body})
    assert response.status_code == 202
    answer: dict[str, str] = response.json
    return answer


def test_generate_waits_for_the_result(client: FlaskClient, verifier: ScriptedVerifier) -> None:
    response = client.post("/api/generate", json={"prompt": "Hi", "max_tokens": 500})
    assert response.status_code == 200
    result = response.json
    assert set(result) == RESULT_FIELDS
    assert (result["text"], result["status"], result["finish_reason"]) == (TEXT, "done", "stop")
    assert result["token_ids"] == verifier.answer
    assert result["usage"]["completion_tokens"] == len(verifier.answer)
    assert result["speculation"]["mean_accepted_length"] > 2
    assert client.get(response.headers["Location"]).json == result


def test_messages_and_bounds_reach_the_engine(client: FlaskClient, verifier: ScriptedVerifier) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0.5, "seed": 7}
    result = client.post("/api/generate", json=body).json
    assert (result["finish_reason"], result["token_ids"]) == ("length", verifier.answer[:4])
    record = verifier.deployment.requests.snapshot(result["id"]).record
    assert (record.max_tokens, record.sampling.temperature, record.sampling.seed) == (4, 0.5, 7)


def test_wait_false_returns_the_urls_at_once(client: FlaskClient, deployment: Deployment) -> None:
    response = client.post("/api/generate", json={"prompt": "Hi", "wait": False})
    answer = response.json
    assert response.status_code == 202
    assert answer["url"] == f"/api/requests/{answer['id']}" == response.headers["Location"]
    assert answer["stream_url"] == f"/api/requests/{answer['id']}/stream"
    running = client.get(answer["url"]).json
    assert (running["status"], running["text"], running["finish_reason"]) == ("active", "", None)
    assert deployment.requests.active() == 1


def test_a_running_request_shows_its_partial_text(
    client: FlaskClient, deployment: Deployment, tokenizer: Tokenizer
) -> None:
    request_id = accepted(client)["id"]
    with ScriptedVerifier(deployment, tokenizer.encode("one two three four five"), pause_s=0.05) as verifier:
        while not (running := client.get(f"/api/requests/{request_id}").json)["token_ids"]:
            assert running["status"] == "active"
        verifier.going.clear()
        running = client.get(f"/api/requests/{request_id}").json
        assert running["text"] and "one two three four five".startswith(running["text"])
        verifier.going.set()


def test_cancelling_twice_changes_nothing_more(client: FlaskClient, deployment: Deployment) -> None:
    url = accepted(client)["url"]
    first, second = client.delete(url), client.delete(url)
    assert (first.status_code, first.json["status"], first.json["finish_reason"]) == (
        200,
        "cancelled",
        "cancelled",
    )
    assert second.json == first.json
    assert deployment.requests.active() == 0


def test_cancelling_does_not_change_a_finished_request(client: FlaskClient, verifier: ScriptedVerifier) -> None:
    result = client.post("/api/generate", json={"prompt": "Hi"}).json
    assert client.delete(f"/api/requests/{result['id']}").json == result


def test_a_waiting_caller_learns_of_a_cancel(client: FlaskClient, deployment: Deployment) -> None:
    results: list[Any] = []
    waiting = threading.Thread(
        target=lambda: results.append(create_app(deployment).test_client().post("/api/generate", json={"prompt": "Hi"}))
    )
    waiting.start()
    while not (orphans := deployment.requests.orphans()):
        pass
    client.delete(f"/api/requests/{orphans[0].request_id}")
    waiting.join()
    assert (results[0].status_code, results[0].json["status"]) == (200, "cancelled")


def test_a_failed_request_gives_its_reason(client: FlaskClient, verifier: ScriptedVerifier) -> None:
    verifier.fail = "the request took three verifiers down"
    response = client.post("/api/generate", json={"prompt": "Hi"})
    assert (response.status_code, response.json["status"], response.json["error"]) == (
        200,
        "failed",
        verifier.fail,
    )


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_an_unknown_request_is_not_found(method: str, client: FlaskClient) -> None:
    response = client.open("/api/requests/unknown", method=method)
    assert response.status_code == 404
    error_of(response)
    assert client.get("/api/requests/unknown/stream").status_code == 404


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "body"),
        ({"prompt": "a", "messages": [{"role": "user", "content": "b"}]}, "body"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "max_tokens": 501}, "max_tokens"),
        ({"prompt": "a", "max_tokens": "many"}, "max_tokens"),
        ({"prompt": "a", "temperature": -0.1}, "temperature"),
        ({"prompt": "a", "top_p": 0}, "top_p"),
        ({"prompt": "a", "seed": 2**63}, "seed"),
        ({"prompt": "a", "speculation": {"enabled": "perhaps"}}, "speculation.enabled"),
        ({"prompt": "a", "streem": True}, "streem"),
        ({"prompt": "a", "stream": "perhaps"}, "stream"),
        ({"prompt": "a", "logit_bias": {"99999": 1}}, "logit_bias"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0"),
        ({"prompt": "a " * 3000}, "prompt"),
    ],
)
def test_bad_input_names_its_field(
    body: dict[str, Any], field: str, client: FlaskClient, deployment: Deployment
) -> None:
    response = client.post("/api/generate", json=body)
    assert response.status_code == 400
    error = error_of(response)
    assert error["field"] == field
    assert error["details"][0]["field"] == field and error["details"][0]["message"]
    assert deployment.requests.active() == 0


def test_an_unknown_field_is_reported_as_unknown(client: FlaskClient) -> None:
    error = error_of(client.post("/api/generate", json={"prompt": "a", "max_token": 5}))
    assert error["message"] == "max_token: this field does not exist"
    assert error["details"][0]["type"] == "extra_forbidden"


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'"x"', b"null", b'{"prompt": "\\ud800"}', b'{"prompt": "\xff"}', b"[" * 5000, b"NaN"],
)
def test_a_body_must_be_a_json_object(body: bytes, client: FlaskClient) -> None:
    response = client.post("/api/generate", data=body, content_type="application/json")
    assert response.status_code == 400
    assert error_of(response)["message"]


@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "presence_penalty"])
@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_must_be_finite(name: str, number: str, client: FlaskClient) -> None:
    body = f'{{"prompt": "a", "{name}": {number}}}'
    response = client.post("/api/generate", data=body, content_type="application/json")
    assert response.status_code == 400
    assert error_of(response)["field"] == name


def test_errors_do_not_repeat_the_prompt(client: FlaskClient) -> None:
    response = client.post("/api/generate", json={"prompt": ["a secret"], "max_tokens": 0})
    assert "secret" not in response.text


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_only_json_is_accepted(content_type: str, client: FlaskClient) -> None:
    response = client.post("/api/generate", data=b'{"prompt": "a"}', content_type=content_type)
    assert response.status_code == 415
    error_of(response)


def test_a_compressed_body_is_refused(client: FlaskClient) -> None:
    body, headers = gzip.compress(b'{"prompt": "a"}'), {"Content-Encoding": "gzip"}
    response = client.post("/api/generate", data=body, content_type="application/json", headers=headers)
    assert response.status_code == 415 and "without Content-Encoding" in error_of(response)["message"]


def test_a_body_beyond_a_mebibyte_is_refused(client: FlaskClient) -> None:
    response = client.post("/api/generate", json={"prompt": "a" * 2**20})
    assert response.status_code == 413
    error_of(response)


def test_a_full_queue_sends_retry_after(client: FlaskClient, settings: Settings) -> None:
    for _ in range(settings.max_active_requests):
        accepted(client)
    response = client.post("/api/generate", json={"prompt": "a"})
    assert response.status_code == 429
    assert int(response.headers["Retry-After"]) >= 1
    error_of(response)


def test_without_redis_the_answer_is_unavailable(deploy: Deploy) -> None:
    client = create_app(deploy(redis_url="redis://127.0.0.1:1/0")).test_client()
    response = client.post("/api/generate", json={"prompt": "a"})
    assert response.status_code == 503
    assert "Retry-After" in response.headers
    error_of(response)
    assert client.get("/healthz").status_code == 200
    ready = client.get("/readyz")
    assert (ready.status_code, ready.json["missing"]) == (503, ["redis"])


def test_a_broken_broker_is_unavailable_too(
    deployment: Deployment, client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def submit(request: GenerateRequest, **_: Any) -> Record:
        raise OperationalError("connection refused")

    monkeypatch.setattr(deployment, "submit", submit)
    assert client.post("/api/generate", json={"prompt": "a"}).status_code == 503


def test_an_internal_error_shows_no_traceback(
    client: FlaskClient, redis_client: redis.Redis, settings: Settings
) -> None:
    request_id = accepted(client)["id"]
    redis_client.hset(f"{settings.namespace}:request:{request_id}", "record", "not a record")
    response = client.get(f"/api/requests/{request_id}")
    assert response.status_code == 500
    assert error_of(response)["message"] == "internal error"


def test_unknown_paths_and_methods_are_explained_in_json(client: FlaskClient) -> None:
    assert error_of(client.get("/api/nothing"))
    wrong = client.get("/api/generate")
    assert wrong.status_code == 405 and "POST" in wrong.headers["Allow"]
    error_of(wrong)


def test_ready_only_with_control_and_verifier(client: FlaskClient, deployment: Deployment) -> None:
    empty = client.get("/readyz")
    assert (empty.status_code, empty.json["missing"]) == (503, ["control", "verify"])
    deployment.nodes.beat("verify", "verify-1", "a", progress_s=0.0, info={})
    assert client.get("/readyz").json["missing"] == ["control"]
    deployment.nodes.beat("control", "control-1", "b", progress_s=0.0, info={})
    ready = client.get("/readyz")
    assert (ready.status_code, ready.json["ready"], ready.json["nodes"]) == (
        200,
        True,
        {"verify": 1, "control": 1},
    )


@pytest.mark.parametrize("path", ["/", "/api/requests/x", "/healthz", "/static/app.js", "/nothing"])
def test_every_answer_carries_the_security_headers(path: str, client: FlaskClient) -> None:
    with client.get(path) as response:
        policy = response.headers["Content-Security-Policy"]
        assert "script-src 'self'" in policy and "unsafe" not in policy
        assert response.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("path", ["/", "/api/generate", "/api/requests/x", "/v1/models", "/dashboard/data", "/metrics"])
def test_other_sites_may_neither_read_nor_act(path: str, client: FlaskClient) -> None:
    """A DELETE or JSON from another site needs a preflight that the server allows."""
    preflight = {"Origin": "https://elsewhere.example", "Access-Control-Request-Method": "DELETE"}
    for method in ("OPTIONS", "GET", "POST", "DELETE"):
        with client.open(path, method=method, headers=preflight) as response:
            assert not [name for name, _ in response.headers if name.lower().startswith("access-control-")]
            assert "Set-Cookie" not in response.headers


def test_the_page_names_the_model_without_its_folder(deploy: Deploy, tmp_path: Path) -> None:
    html = create_app(deploy(model=str(tmp_path / "tiny-model"))).test_client().get("/").text
    assert "tiny-model" in html and str(tmp_path) not in html


def test_the_page_has_no_inline_script_or_style(client: FlaskClient) -> None:
    html = client.get("/").text
    assert "smollm2-135m" in html
    assert "<style" not in html and "style=" not in html and "onclick" not in html
    assert "<script>" not in html

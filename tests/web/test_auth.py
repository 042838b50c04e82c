"""Test API keys: without one only public routes open, and no tenant sees another's requests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from flask import Flask
from flask.testing import FlaskClient

from app.api_keys import add_key, remove_key
from app.config import Settings
from tests.web.browser import Browser
from tests.web.conftest import TEXT, Deploy, Server
from tests.web.doubles import ScriptedVerifier
from web.auth import METRICS, PUBLIC
from web.factory import create_app
from workers.deployment import Deployment

BODY = {"prompt": "Hi", "wait": False}
CHAT = {"model": "smollm2-135m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return tmp_path / "keys.jsonl"


@pytest.fixture
def key(keys: Path) -> str:
    return add_key(keys, "me")


@pytest.fixture
def settings(settings: Settings, keys: Path, key: str) -> Settings:
    return settings.model_copy(update={"keys": keys})


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def routes(app: Flask) -> Iterator[tuple[str, str, str]]:
    """Yield endpoint, method and a path of every route."""
    for rule in app.url_map.iter_rules():
        assert set(rule.arguments) <= {"request_id", "trace", "name", "filename"}
        path = "/".join("x" if part.startswith("<") else part for part in rule.rule.split("/"))
        for method in rule.methods or ():
            yield rule.endpoint, method, path


def test_every_route_is_closed_but_the_public_ones(deployment: Deployment, client: FlaskClient) -> None:
    opened, known = set(), set()
    for endpoint, method, path in routes(create_app(deployment)):
        known.add(endpoint)
        with client.open(path, method=method) as response:
            if response.status_code != 401:
                opened.add(endpoint)
            else:
                assert response.headers["WWW-Authenticate"] == "Bearer"
    assert opened == PUBLIC
    assert METRICS in known - PUBLIC and len(known) > 2 * len(PUBLIC)
    assert client.get("/nothing").status_code == 401


def test_a_route_added_later_is_closed_too(deployment: Deployment, key: str) -> None:
    app = create_app(deployment)
    app.add_url_rule("/later", view_func=lambda: "something new")
    assert app.test_client().get("/later").status_code == 401
    assert app.test_client().get("/later", headers=bearer(key)).status_code == 200


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic me:{key}", "{key}", "Bearer {key}x", "Bearer pk-"])
def test_a_wrong_or_missing_key_is_refused(header: str, key: str, client: FlaskClient, deployment: Deployment) -> None:
    headers = {"Authorization": header.format(key=key)}
    refused = client.post("/api/generate", json=BODY, headers=headers)
    assert refused.status_code == 401 and refused.json["error"]["message"]
    v1 = client.post("/v1/chat/completions", json=CHAT, headers=headers)
    assert (v1.status_code, v1.json["error"]["code"]) == (401, "invalid_api_key")
    assert key not in refused.text + v1.text and deployment.requests.active() == 0


def test_a_valid_key_opens_all_routes(client: FlaskClient, key: str, verifier: ScriptedVerifier) -> None:
    result = client.post("/api/generate", json={"prompt": "Hi"}, headers=bearer(key)).json
    assert result["text"] == TEXT
    assert client.get(f"/api/requests/{result['id']}", headers=bearer(key)).json == result
    chat = client.post("/v1/chat/completions", json=CHAT, headers=bearer(key))
    assert chat.json["usage"]["completion_tokens"] == 4
    for path in ("/metrics", "/dashboard/data", "/v1/models"):
        assert client.get(path, headers=bearer(key)).status_code == 200
    records = [verifier.deployment.requests.snapshot(request_id).record for request_id in verifier.seen]
    assert {record.tenant for record in records} == {"me"} and len(records) == 2


def test_a_tenants_requests_are_unknown_to_others(
    client: FlaskClient, key: str, keys: Path, deployment: Deployment
) -> None:
    other, second = add_key(keys, "other"), add_key(keys, "my-other-key", tenant="me")
    request_id = client.post("/api/generate", json=BODY, headers=bearer(key)).json["id"]
    never = client.get("/api/requests/unknown", headers=bearer(other))
    for method, path in (("GET", ""), ("GET", "/stream"), ("GET", "/stream?offset=7"), ("DELETE", "")):
        refused = client.open(f"/api/requests/{request_id}{path}", method=method, headers=bearer(other))
        assert refused.status_code == 404 and refused.text == never.text  # in this order: a stream would not end
    assert deployment.requests.active() == 1
    assert client.get(f"/api/requests/{request_id}", headers=bearer(second)).json["status"] == "active"
    assert client.delete(f"/api/requests/{request_id}", headers=bearer(second)).json["status"] == "cancelled"


def test_a_removed_key_is_refused_at_once(client: FlaskClient, key: str, keys: Path) -> None:
    assert client.get("/v1/models", headers=bearer(key)).status_code == 200
    remove_key(keys, "me")
    assert client.get("/v1/models", headers=bearer(key)).status_code == 401
    keys.unlink()
    unreadable = client.get("/v1/models", headers=bearer(key))
    assert unreadable.status_code == 503 and str(keys) not in unreadable.text


def test_open_metrics_opens_metrics_alone(deploy: Deploy) -> None:
    client = create_app(deploy(open_metrics=True)).test_client()
    assert client.get("/metrics").status_code == 200
    assert client.get("/dashboard/data").status_code == 401


def limited(deployment: Deployment, keys: Path, **limits: int) -> tuple[list[FlaskClient], dict[str, str]]:
    """Make two web processes, and the header of a key with limits."""
    return [create_app(deployment).test_client() for _ in range(2)], bearer(add_key(keys, "limited", **limits))  # type: ignore[arg-type]


def test_the_rate_of_a_key_is_one_across_web_processes(deployment: Deployment, keys: Path, key: str) -> None:
    (first, second), header = limited(deployment, keys, rate_per_minute=3)
    assert first.post("/api/generate", json=BODY, headers=header).status_code == 202
    assert second.post("/api/generate", json=BODY, headers=header).status_code == 202
    both = {**CHAT, "n": 2, "stream": True}  # so that it returns even if it is let in
    refused = first.post("/v1/chat/completions", json=both, headers=header)
    assert (refused.status_code, refused.json["error"]["code"]) == (429, "rate_limit_exceeded")
    assert first.post("/api/generate", json=BODY, headers=header).status_code == 202
    refused = second.post("/api/generate", json=BODY, headers=header)
    assert refused.status_code == 429 and 50 <= int(refused.headers["Retry-After"]) <= 60
    assert second.post("/api/generate", json=BODY, headers=bearer(key)).status_code == 202
    assert deployment.requests.active() == 4


def test_a_keys_concurrency_is_bounded_across_web_processes(deployment: Deployment, keys: Path) -> None:
    (first, second), header = limited(deployment, keys, concurrent=2)
    ids = [web.post("/api/generate", json=BODY, headers=header).json["id"] for web in (first, second)]
    for web in (first, second):
        refused = web.post("/api/generate", json=BODY, headers=header)
        assert refused.status_code == 429 and int(refused.headers["Retry-After"]) >= 1
    first.delete(f"/api/requests/{ids[0]}", headers=header)
    again = second.post("/api/generate", json=BODY, headers=header)
    assert again.status_code == 202
    assert first.post("/api/generate", json=BODY, headers=header).status_code == 429
    assert deployment.requests.active() == 2


def test_ended_and_refused_requests_free_their_places(
    deployment: Deployment, keys: Path, verifier: ScriptedVerifier
) -> None:
    (web, _), header = limited(deployment, keys, concurrent=1)
    for _ in range(3):
        assert web.post("/api/generate", json={"prompt": "Hi"}, headers=header).status_code == 200
        assert web.post("/api/generate", json={"prompt": ""}, headers=header).status_code == 400
    never = web.post("/v1/chat/completions", json={**CHAT, "n": 2}, headers=header)
    assert (never.status_code, never.json["error"]["param"]) == (400, "n")


def test_without_redis_a_limited_key_gets_nothing(deploy: Deploy, keys: Path) -> None:
    header = bearer(add_key(keys, "limited", rate_per_minute=3))
    web = create_app(deploy(redis_url="redis://127.0.0.1:1/0")).test_client()
    assert web.post("/api/generate", json=BODY, headers=header).status_code == 503


@pytest.mark.browser
def test_the_pages_ask_for_the_key(window: Browser, server: Server, key: str, verifier: ScriptedVerifier) -> None:
    window.open(server.url)
    window.complaints()
    window.click("#send")
    window.wait(lambda: "API key" in window.text("#error"))
    window.type("#key", key)
    window.click("#key-set")
    window.click("#send")
    window.wait(lambda: window.text("#status").startswith("Finished"))
    assert window.text("#output") == TEXT
    window.open(f"{server.url}/dashboard")
    window.wait(lambda: window.text("#t-active") not in ("", "–"))
    assert window.run("return document.querySelector('#key').placeholder") == "in use"
    assert all("401" in complaint for complaint in window.complaints())

"""Test the Host check: a page of a foreign site whose name resolves here gets no answer."""

from pathlib import Path

import pytest
from flask.testing import FlaskClient

from app.api_keys import add_key
from app.config import Settings
from app.errors import InvalidSettings
from tests.web.conftest import Deploy
from web.factory import create_app
from workers.deployment import Deployment

OURS = ["localhost", "LOCALHOST:8000", "127.0.0.1:8000", "192.168.1.7", "[::1]:8000", "me.localhost"]
FOREIGN = ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "web", "", "a b"]
FOREIGN += ["[::1", "[::1].evil.example", "localhost@evil.example", "evillocalhost", "localhost,evil.example"]


def status(client: FlaskClient, host: str, path: str = "/healthz") -> int:
    return client.get(path, headers={"Host": host}).status_code


def test_only_loopback_names_and_addresses_are_allowed(client: FlaskClient) -> None:
    assert [host for host in OURS if status(client, host) != 200] == []
    assert [host for host in FOREIGN if status(client, host) != 421] == []


def test_every_route_refuses_a_foreign_host_with_a_reason(client: FlaskClient, deployment: Deployment) -> None:
    foreign = {"Host": "evil.example:8000"}
    for path in ("/", "/dashboard/data", "/metrics", "/openapi.json", "/static/app.js", "/nothing"):
        assert client.get(path, headers=foreign).status_code == 421
    refused = client.post("/api/generate", json={"prompt": "Hi", "wait": False}, headers=foreign)
    assert "PACELINE_HOSTS" in refused.json["error"]["message"] and deployment.requests.active() == 0
    v1 = client.post("/v1/completions", json={"model": "m", "prompt": "Hi"}, headers=foreign)
    assert (v1.status_code, v1.json["error"]["type"]) == (421, "invalid_request_error")


def test_a_call_without_host_is_allowed(client: FlaskClient) -> None:
    assert client.get("/healthz", environ_overrides={"HTTP_HOST": None}).status_code == 200


def test_hosts_of_settings_and_process_are_allowed(deploy: Deploy) -> None:
    client = create_app(deploy(hosts=("web", ".example.org")), names=["0.0.0.0", "myhost"]).test_client()
    for host in ("web:8000", "example.org", "llm.example.org", "myhost:8000", *OURS):
        assert status(client, host) == 200
    assert {status(client, host) for host in ("evil.example", "myhost.evil.example", "badexample.org")} == {421}


def test_with_keys_hosts_are_checked_only_if_set(deploy: Deploy, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    add_key(keys, "me")
    assert status(create_app(deploy(keys=keys)).test_client(), "llm.example.org") == 200
    client = create_app(deploy(keys=keys, hosts=("llm.example.org",))).test_client()
    assert (status(client, "llm.example.org"), status(client, "evil.example")) == (200, 421)


def test_settings_refuse_hosts_that_are_no_names() -> None:
    assert Settings.from_env({"PACELINE_HOSTS": "web,.example.org,"}).hosts == ("web", ".example.org")
    for wrong in ("http://web", "web:8000", "*", "a..b"):
        with pytest.raises(InvalidSettings, match="PACELINE_HOSTS"):
            Settings.from_env({"PACELINE_HOSTS": wrong})

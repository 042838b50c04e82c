"""Test that pages of named sites alone may call the APIs."""

from pathlib import Path

import pytest

from app.api_keys import add_key
from app.config import Settings
from app.errors import InvalidSettings
from tests.web.conftest import Deploy
from web.factory import create_app

SITE = "https://chat.example.org"
PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}


def test_a_named_site_may_call_and_others_may_not(deploy: Deploy) -> None:
    client = create_app(deploy(origins=(SITE,))).test_client()
    allowed = client.get("/v1/models", headers={"Origin": SITE})
    assert allowed.headers["Access-Control-Allow-Origin"] == SITE and "Origin" in allowed.headers["Vary"]
    for headers in ({"Origin": "https://example.org"}, {}):
        assert "Access-Control-Allow-Origin" not in client.get("/v1/models", headers=headers).headers
    anyone = create_app(deploy(origins=("*",))).test_client().get("/v1/models", headers={"Origin": "http://a:1"})
    assert anyone.headers["Access-Control-Allow-Origin"] == "http://a:1"
    closed = create_app(deploy()).test_client().get("/v1/models", headers={"Origin": SITE})
    assert "Access-Control-Allow-Origin" not in closed.headers


def test_a_preflight_needs_no_key(deploy: Deploy, tmp_path: Path) -> None:
    add_key(tmp_path / "keys", "me")
    client = create_app(deploy(origins=(SITE,), keys=tmp_path / "keys")).test_client()
    found = client.options("/v1/chat/completions", headers={"Origin": SITE, **PREFLIGHT})
    assert found.status_code == 204 and found.headers["Access-Control-Allow-Headers"] == "authorization"
    refused = client.get("/v1/models", headers={"Origin": SITE})
    assert refused.status_code == 401 and refused.headers["Access-Control-Allow-Origin"] == SITE


def test_origins_are_sites() -> None:
    assert Settings.from_env({"PACELINE_ORIGINS": f"{SITE},http://localhost:3000"}).origins[0] == SITE
    for wrong in ("example.org", f"{SITE}/path"):
        with pytest.raises(InvalidSettings, match="PACELINE_ORIGINS"):
            Settings.from_env({"PACELINE_ORIGINS": wrong})

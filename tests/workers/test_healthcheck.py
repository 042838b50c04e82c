"""Test a container's health check: it needs the worker's heartbeat and its progress."""

import time

import pytest
import redis

from app.store.nodes import Nodes
from workers.healthcheck import main


@pytest.fixture
def nodes(redis_client: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Nodes:
    monkeypatch.setenv("PACELINE_REDIS_URL", redis_url)
    return Nodes(redis_client, "paceline", lease_s=2.0)


def test_a_worker_that_beats_and_gets_on_is_alive(nodes: Nodes) -> None:
    nodes.beat("draft", "draft-a", "owner", progress_s=time.time(), info={})
    assert main(["draft", "draft-a"]) == 0


@pytest.mark.parametrize(
    ("name", "age_s", "problem"), [("draft-b", 0.0, "no heartbeat"), ("draft-a", 99.0, "no progress")]
)
def test_one_that_is_silent_or_hangs_is_not(
    nodes: Nodes, name: str, age_s: float, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes.beat("draft", "draft-a", "owner", progress_s=time.time() - age_s, info={})
    assert main(["draft", name]) == 1
    assert problem in capsys.readouterr().err


def test_a_missing_redis_url_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("PACELINE_REDIS_URL", raising=False)
    assert main(["draft", "draft-a"]) == 1
    assert "PACELINE_REDIS_URL" in capsys.readouterr().err

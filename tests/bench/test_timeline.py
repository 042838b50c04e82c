"""Test the picture of a request's timeline, read from the Redis of a running instance."""

import os
from pathlib import Path

import pytest
import redis

from app.local.instance import Instance, ProcessId, State
from app.store.traces import Trace, Traces, TraceSpan, trace_name
from bench.timeline import main

NAMESPACE = "test"
SPANS = [
    TraceSpan(10.4, 10.5, "draft", "draft-1", 2),
    TraceSpan(10.0, 10.4, "verify", "verify-1", 2),
]


@pytest.fixture
def traces(redis_client: redis.Redis, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Traces:
    """Let an instance seem to run over an empty Redis; return its timelines."""
    myself = ProcessId.of(os.getpid())
    assert myself is not None
    url = "http://127.0.0.1:1"
    state = State(instance="default", supervisor=myself, url=url, redis_url=redis_url, namespace=NAMESPACE)
    monkeypatch.setenv("PACELINE_STATE", str(tmp_path))
    Instance(tmp_path).write(state)
    return Traces(redis_client, NAMESPACE)


@pytest.mark.parametrize("named", [[], ["a"]])
def test_the_picture_is_written_and_busy_parts_are_printed(
    traces: Traces, tmp_path: Path, capsys: pytest.CaptureFixture[str], named: list[str]
) -> None:
    traces.add([Trace(trace_name("a"), {"tokens": "2"}, SPANS)])
    out = tmp_path / "picture.png"
    assert main([*named, "--out", str(out), "--seconds", "0.2"]) == 0
    assert out.read_bytes().startswith(b"\x89PNG") and out.stat().st_size < 150_000
    printed = capsys.readouterr().out
    assert "80.0%" in printed and "20.0%" in printed


def test_a_request_without_a_timeline_is_an_error(traces: Traces, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["17b3"]) == 1
    assert "no timeline of request 17b3" in capsys.readouterr().err


def test_an_instance_that_does_not_run_is_an_error(traces: Traces, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--instance", "other"]) == 1
    assert "'other' is not running" in capsys.readouterr().err

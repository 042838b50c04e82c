"""Test verifier and drafters in one process on divided cores: the same texts, and restarts after a kill."""

import os
import signal
from typing import Any

import pytest

from app.request import GenerateRequest
from tests.workers.cluster import Cluster, wait_for
from tests.workers.conftest import Alone
from workers.deployment import Deployment

REQUESTS = 4


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_engine_on_divided_cores_says_the_same_and_its_requests_outlive_it(
    cluster: Cluster, deployment: Deployment, alone: Alone
) -> None:
    engine = cluster.start_worker("engine", "engine-2", PACELINE_PLAN="{partition = 1}")
    try:
        wait_for(lambda: "engine-2" in [node.name for node in deployment.nodes.live("verify")], what="the engine")
        wait_for(
            lambda: "engine-2-draft" in [node.name for node in deployment.nodes.live("draft")], what="its drafters"
        )
        info = next(node.info for node in deployment.nodes.live("verify") if node.name == "engine-2")
        assert not set(info["partition"]["verify_cores"]) & set(info["partition"]["draft_cores"])
        requests = [
            GenerateRequest(prompt="Tell me", raw=True, max_tokens=300, temperature=0.8, seed=170 + i)
            for i in range(REQUESTS)
        ]
        streams = [cluster.stream(request) for request in requests]
        owner = next(node.owner for node in deployment.nodes.live("verify") if node.name == "engine-2")
        for stream in streams:
            stream.read(until=30)
        owned = [stream.id for stream in streams if deployment.requests.snapshot(stream.id).owner == owner]
        os.kill(engine.pid, signal.SIGKILL)
        for request, stream in zip(requests, streams, strict=True):
            stream.read()
            assert stream.tokens == alone(request)
        assert owned, "it had its share of the requests"
    finally:
        engine.kill()
        engine.wait(30)


@pytest.mark.extended
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_engine_whose_cores_are_divided_by_load_says_the_same(
    cluster: Cluster, deployment: Deployment, alone: Alone
) -> None:
    engine = cluster.start_worker(
        "engine", "engine-3", PACELINE_PLAN='{base = "faser", partition = "auto", pruning = "off"}'
    )
    try:
        wait_for(lambda: "engine-3" in [node.name for node in deployment.nodes.live("verify")], what="the engine")

        def info() -> dict[str, Any]:
            return next(node.info for node in deployment.nodes.live("verify") if node.name == "engine-3")

        assert info()["split"] == {"units": 0, "at_once": False}
        measured = info()["partition"]
        assert measured and all(one["verify_slowdown"] > 0.0 < one["draft_slowdown"] for one in measured.values())
        requests = [GenerateRequest(prompt="Tell me", raw=True, max_tokens=300, seed=270 + i) for i in range(REQUESTS)]
        owner = next(node.owner for node in deployment.nodes.live("verify") if node.name == "engine-3")
        streams = [cluster.stream(request) for request in requests]
        for stream in streams:
            stream.read(until=30)
        assert any(deployment.requests.snapshot(stream.id).owner == owner for stream in streams)
        for request, stream in zip(requests, streams, strict=True):
            stream.read()
            assert stream.tokens == alone(request)
    finally:
        engine.kill()
        engine.wait(30)

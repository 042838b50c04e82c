"""Test two verifiers of different targets in one deployment: no request changes from one to the other."""

import json
import signal
import urllib.request

import pytest

from app.request import GenerateRequest
from tests.workers.cluster import Cluster, wait_for
from tests.workers.conftest import Alone
from workers.deployment import Deployment

OTHER = "verify-other"


@pytest.mark.extended
def test_a_request_waits_for_a_verifier_of_the_target_that_began_it(
    cluster: Cluster, deployment: Deployment, alone: Alone
) -> None:
    """The other one lives, is idle, and computes with rounded weights: its tokens would soon be others."""
    worker = cluster.start_worker("verify", OTHER, PACELINE_WEIGHTS="q8_0")
    try:
        wait_for(lambda: OTHER in cluster.status().nodes, what="the other verifier")
        nodes = {node.name: node for node in deployment.nodes.live("verify")}
        own, other = nodes["verify-1"].info["target"], nodes[OTHER].info["target"]
        assert own != other
        begun = GenerateRequest(prompt="Whose tokens", raw=True, max_tokens=500, temperature=0.9, seed=5)
        stream = cluster.stream(begun).read(until=20)
        assert deployment.requests.snapshot(stream.id).owner == nodes["verify-1"].owner, "of equals the first"
        old = cluster.signal("verify", signal.SIGKILL)
        assert _completion(cluster)["system_fingerprint"] in (f"fp_{own}", f"fp_{other}")
        cluster.await_restart("verify", old)
        assert stream.read().tokens == alone(begun)
        assert deployment.requests.snapshot(stream.id).target == own
    finally:
        worker.terminate()
        worker.wait(30)


def _completion(cluster: Cluster) -> dict[str, str]:
    body = {"model": cluster.settings().model_name, "prompt": "Who answers?", "max_tokens": 4}
    call = urllib.request.Request(
        f"{cluster.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(call, timeout=60) as response:
        return dict(json.load(response))

"""Submit a request from another host and print its outcome: `python -m tests.workers.lone_client REQUEST`.

Waits for a verifier and a drafter first, and asks again until the drafter was right ahead of a verdict. Settings
come from PACELINE_*.
"""

import json
import sys
import time

from app.config import Settings
from app.messages import Status
from app.request import GenerateRequest
from app.store.protocol import Snapshot
from workers.deployment import Deployment

LIMIT_S = 200.0  # a busy machine takes a minute to start the workers


def main() -> None:
    """Print tokens, statistics and the drafter node's report as JSON."""
    deployment = Deployment.open(Settings.from_env())
    until_s = time.monotonic() + LIMIT_S
    while {node.kind for node in deployment.nodes.live()} < {"verify", "draft"}:
        assert time.monotonic() < until_s, "the workers did not come up"
        time.sleep(0.1)
    time.sleep(2 * deployment.settings.lease_s / 4)  # by then the verifier has seen who drafts
    request = GenerateRequest.model_validate_json(sys.argv[1])
    snapshot = _run(deployment, request)
    (drafter,) = deployment.nodes.live("draft")
    until_s = time.monotonic() + LIMIT_S
    while not drafter.info["ahead_hits"] and time.monotonic() < until_s:
        _run(deployment, request)  # a busy machine may have left the drafter no time beside one request
        (drafter,) = deployment.nodes.live("draft")
    answer = {"tokens": snapshot.tokens, "stats": snapshot.stats.as_dict(), "drafter": drafter.info}
    print(json.dumps(answer))


def _run(deployment: Deployment, request: GenerateRequest) -> Snapshot:
    """Run a request to its end, and wait for a heartbeat more; return the end."""
    record = deployment.submit(request)
    until_s = time.monotonic() + LIMIT_S
    while (snapshot := deployment.requests.snapshot(record.id)).status is Status.ACTIVE:
        assert time.monotonic() < until_s, f"the request did not end: {len(snapshot.tokens)} tokens"
        time.sleep(0.05)
    time.sleep(deployment.settings.lease_s / 2)
    return snapshot


if __name__ == "__main__":
    main()

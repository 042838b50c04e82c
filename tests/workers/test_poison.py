"""Test a request that kills every verifier that runs it, in real processes: it alone fails."""

import os
import time
from pathlib import Path

import pytest

from app.config import ROOT
from app.request import GenerateRequest
from tests.workers.cluster import Cluster, running, wait_for
from tests.workers.conftest import Alone
from workers.recovery import MAX_STRIKES

POISON_SEED = 666
# What each Python process of the deployment runs first: as if a step of that request met a fault that kills.
FAULT = f"""
import os, signal
try:
    import app.verifier.verifier as module
except ImportError:
    pass  # the launcher's own interpreter
else:
    verify = module.verify
    def deadly(works, rows):
        if any(work.sequence.sampling.seed == {POISON_SEED} for work in works):
            os.kill(os.getpid(), signal.SIGKILL)
        return verify(works, rows)
    module.verify = deadly
"""


@pytest.mark.extended
def test_a_request_that_kills_its_verifiers_fails_alone(
    tiny_environ: dict[str, str], alone: Alone, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(FAULT)
    environ = {
        **tiny_environ,
        "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT))),
        "PACELINE_STEER_LOG": "",
    }
    mates = [GenerateRequest(prompt=f"mate {i}", raw=True, max_tokens=120) for i in range(2)]
    poison = GenerateRequest(prompt="poison", raw=True, max_tokens=8, seed=POISON_SEED)
    with running(f"poison-{os.getpid()}", tmp_path / "state", environ) as cluster:
        first = cluster.pid("verify")
        ids = [_send(cluster, request) for request in (mates[0], poison, mates[1])]
        ends = [wait_for(lambda id_=id_: _ended(cluster, id_), what=f"the end of {id_}") for id_ in ids]
        assert [end["status"] for end in ends] == ["done", "failed", "done"]
        assert [ends[0]["token_ids"], ends[2]["token_ids"]] == [alone(mate) for mate in mates]
        assert f"{MAX_STRIKES} verifiers died" in ends[1]["error"] and ends[1]["token_ids"] == []
        assert f"{MAX_STRIKES} verifiers died" in cluster.logs()
        last = cluster.pid("verify")
        assert last != first
        cluster.await_ready()
        assert cluster.post(_body(mates[0]))["status"] == "done"
        time.sleep(0.1)
        assert cluster.pid("verify") == last, "and nobody dies of what is gone"


def _send(cluster: Cluster, request: GenerateRequest) -> str:
    return str(cluster.post({**_body(request), "wait": False})["id"])


def _body(request: GenerateRequest) -> dict[str, object]:
    return request.model_dump(mode="json", exclude_none=True)


def _ended(cluster: Cluster, request_id: str) -> dict[str, object] | None:
    result = cluster.get(f"/api/requests/{request_id}")
    return result if result["status"] in ("done", "failed", "cancelled") else None

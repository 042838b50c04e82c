"""Test the modules loaded in running processes, and the report of `status`."""

from pathlib import Path

import pytest

from app.request import GenerateRequest
from tests.workers.cluster import Cluster, running
from tests.workers.conftest import Alone

HEAVY = ("libtorch", "/torch/", "/transformers/", "/safetensors/")


def _mapped(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.parametrize("role", ["web", "control", "fuse", "beat"])
def test_a_running_process_has_neither_torch_nor_transformers(cluster: Cluster, role: str) -> None:
    cluster.post({"prompt": "Hello", "max_tokens": 4})  # chat template and all: it has done its work once
    mapped = _mapped(cluster.pid(role))
    assert "python" in mapped and "/redis" not in mapped  # only compiled modules are mapped: torch's always are
    assert not [name for name in HEAVY if name in mapped]


@pytest.mark.parametrize("role", ["verify", "draft"])
def test_model_worker_shows_that_the_check_above_can_fail(cluster: Cluster, role: str) -> None:
    assert "libtorch" in _mapped(cluster.pid(role))


@pytest.mark.extended
def test_deployment_without_any_draft_worker_decodes_all_the_same(
    tiny_environ: dict[str, str], alone: Alone, tmp_path: Path
) -> None:
    request = GenerateRequest(prompt="Nobody drafts", raw=True, max_tokens=60, temperature=0.8, seed=2)
    with running("bare", tmp_path, {**tiny_environ, "PACELINE_DRAFTERS": "none"}) as cluster:
        status = cluster.status()
        assert status.ready and status.processes["draft"] == ()
        assert cluster.stream(request).read().tokens == alone(request)

"""What is loaded in the running processes, and what `status` says of them."""

from pathlib import Path

import pytest

from tests.workers.deployment import Deployment

HEAVY = ("libtorch", "/torch/", "/transformers/", "/safetensors/")


def _mapped(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.parametrize("role", ["web", "control", "fuse", "beat"])
def test_running_process_has_neither_torch_nor_transformers_loaded(deployment: Deployment, role: str) -> None:
    deployment.post({"prompt": "Hello", "max_tokens": 4})  # chat template and all: it has done its work once
    mapped = _mapped(deployment.pid(role))
    assert "python" in mapped and "/redis" not in mapped  # only compiled modules are mapped: torch's always are
    assert not [name for name in HEAVY if name in mapped]


@pytest.mark.parametrize("role", ["verify", "draft"])
def test_model_worker_shows_that_the_check_above_can_fail(deployment: Deployment, role: str) -> None:
    assert "libtorch" in _mapped(deployment.pid(role))

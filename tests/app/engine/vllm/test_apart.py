"""Run the target inside vLLM, in an environment that has it and pytest: PACELINE_VLLM_PYTHON names it.

The engine itself needs no GPU: vLLM's build for CPUs runs it.
"""

import os
import subprocess
from pathlib import Path

import pytest

from app.config import Settings
from app.local.process_specs import interpreter

ROOT = Path(__file__).parents[4]
FILES = sorted((Path(__file__).parent / "apart").glob("*.py"))
PYTHON = os.environ.get("PACELINE_VLLM_PYTHON")

pytestmark = [
    pytest.mark.extended,
    pytest.mark.skipif(PYTHON is None, reason="PACELINE_VLLM_PYTHON names no Python that has vLLM"),
]


@pytest.mark.parametrize("divided", ["whole", "TENSOR_PARALLEL", "PIPELINE_PARALLEL"])
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_in_vllms_environment(file: Path, divided: str) -> None:
    python, more = interpreter("verify", Settings(engine="vllm", vllm_python=Path(str(PYTHON))))
    command = [python, "-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider", "-m", ""]
    command += ["-o", "filterwarnings=default", str(file)]  # vLLM's own are many
    environment = {**os.environ, **more, "VLLM_CPU_OMP_THREADS_BIND": "nobind", divided: "2"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]

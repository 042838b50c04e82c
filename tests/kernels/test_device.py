"""Run the Triton kernels against their references: in the interpreter everywhere, on a GPU where
there is one.

Triton reads TRITON_INTERPRET once, so every file under `device/` gets a pytest of its own. By hand:

    TRITON_INTERPRET=1 pytest --noconftest tests/kernels/device/kv_commit.py     (without the variable: on the GPU)

The interpreter runs one program after the other: races and missing barriers show on a GPU only.
"""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
FILES = sorted(path for path in (Path(__file__).parent / "device").glob("*.py") if "def test_" in path.read_text())

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not made for this machine"
)


def run_pytest(file: Path, **environment: str) -> None:
    """Fail, with its output, unless all tests of the file passed and there were some."""
    inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider", "--durations=0", str(file)],
        cwd=ROOT,
        env=inherited | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert re.search(r"\d+ passed", done.stdout), done.stdout[-2000:]


def test_every_kernel_is_here():
    known = {"fixed_linear", "kv_commit", "ragged_attention", "rms_norm", "rotary_store", "row_compaction"}
    assert known <= {file.stem for file in FILES}


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_in_the_interpreter(file):
    run_pytest(file, TRITON_INTERPRET="1")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_on_the_gpu(file):
    run_pytest(file)

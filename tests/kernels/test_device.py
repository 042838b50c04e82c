"""Run the Triton kernels against their references: in the interpreter everywhere, on a GPU where
there is one.

Triton reads TRITON_INTERPRET once, so the files under `device/` run in a pytest of their own. By hand:

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

from tests.bench.gpu import bare

ROOT = Path(__file__).parents[2]
FILES = sorted(path for path in (Path(__file__).parent / "device").glob("*.py") if "def test_" in path.read_text())
ALONE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not made for this machine"
)


def run_pytest(files: list[Path], marked: str = "", **environment: str) -> None:
    """Fail, with its output, unless all tests of the files that are so marked passed and each file has some."""
    inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "pytest", "-q", "-rp", "--noconftest", "-p", "no:cacheprovider", "-m", marked]
    done = subprocess.run(
        [*command, *map(str, files)],
        cwd=ROOT,
        env=inherited | ALONE | environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert set(re.findall(r"^PASSED .*/(\w+)\.py::", done.stdout, re.MULTILINE)) == {file.stem for file in files}


def test_every_kernel_is_here():
    known = {"fixed_linear", "kv_commit", "ragged_attention", "rms_norm", "rotary_store", "target_token_batch"}
    assert known <= {file.stem for file in FILES}


@pytest.mark.slow
def test_in_the_interpreter(tmp_path):
    """On a bare machine, as one with a GPU may be."""
    run_pytest(FILES, "not extended", **bare.environment(tmp_path))


@pytest.mark.extended
def test_all_in_the_interpreter(tmp_path):
    run_pytest(FILES, **bare.environment(tmp_path))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_the_gpu():
    run_pytest(FILES)

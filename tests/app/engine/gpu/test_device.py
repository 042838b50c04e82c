"""Run the tests of target and drafters on a GPU: in Triton's interpreter everywhere, on a GPU where
there is one.

Every file under `device/` gets a process of its own.
"""

import importlib.util
from pathlib import Path

import pytest
import torch

from tests.kernels.test_device import run_pytest

FILES = [Path(__file__).parent / "device" / name for name in ("target.py", "guesser.py")]

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not made for this machine"
)


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_in_the_interpreter(file):
    run_pytest(file, TRITON_INTERPRET="1")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_on_the_gpu(file):
    run_pytest(file)

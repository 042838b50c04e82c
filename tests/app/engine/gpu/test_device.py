"""Run the tests of target and drafters on a GPU: in Triton's interpreter everywhere, on a GPU where
there is one.

The files under `device/` run in a process of their own.
"""

import importlib.util
from pathlib import Path

import pytest
import torch

from tests.bench.gpu import bare
from tests.kernels.test_device import run_pytest

FILES = [Path(__file__).parent / "device" / name for name in ("target.py", "guesser.py")]

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not made for this machine"
)


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

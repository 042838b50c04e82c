"""Test that the GPU's benchmark times every Triton kernel."""

import importlib.util

import pytest
import torch

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not made for this machine", allow_module_level=True)

from bench.gpu.kernel_cases import all_cases
from kernels.compile import MODULES


def test_every_kernel_is_timed():
    kernels = {module.rpartition(".")[2] for module in MODULES}
    kernels -= {"sm_probe"}  # computes nothing: how long it runs is an argument
    assert {case.kernel for case in all_cases(torch.device("cpu"), 2, 100)} == kernels

"""Test the kernels' benchmark: every kernel is in it, and what it times computes the right thing."""

import importlib.util
from pathlib import Path

import pytest
import torch

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not made for this machine", allow_module_level=True)

from kernels import bench
from kernels.bench_cases import CPU, all_cases

KERNELS = Path(bench.__file__).parent


def test_every_kernel_is_timed():
    modules = {path.stem for path in KERNELS.rglob("*.py") if "def compile_cases(" in path.read_text()}
    modules -= {"sm_probe"}  # computes nothing: how long it stays is its own choice
    assert modules | {"cpu.linear F32", "cpu.linear Q4_1", "cpu.attention"} <= {
        case.kernel for case in all_cases(CPU, 2, 100)
    }


@pytest.mark.slow  # where its kernels were not compiled before
def test_without_a_gpu_only_the_cpus_kernels_run_and_are_right():
    running = [case for case in all_cases(CPU, 2, 100) if case.run is not None]
    assert {case.kernel.partition(".")[0] for case in running} == {
        "best_lengths",
        "cpu",
        "merged_trees",
        "packed_linear",
        "phrase_tree",
    }
    for case in running:
        found = torch.as_tensor(case.run())
        expected = case.reference()
        if case.kernel == "cpu.attention":
            found = found.view(expected.shape[1], expected.shape[0], -1).transpose(0, 1)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3, check_dtype=False)


def test_the_median_is_of_at_least_three_calls():
    calls = []
    assert bench.median_ms(lambda: calls.append(1), CPU, 0.0) < 10
    assert len(calls) == 4

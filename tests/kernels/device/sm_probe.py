"""Test the probe of multiprocessors; run by ../test_device.py, in a process of its own."""

import pytest
import torch

from kernels.sm_probe import PROGRAMS, multiprocessors
from tests.kernels.device.places import DEVICE


def test_a_cpu_is_one_processor():
    assert set(multiprocessors(3, torch.device("cpu")).tolist()) == {0}


@pytest.mark.skipif(DEVICE.type != "cuda", reason="the interpreter has no multiprocessors")
def test_kernels_are_seen_wherever_they_may_run():
    total = torch.cuda.get_device_properties(DEVICE).multi_processor_count
    seen = multiprocessors(total, DEVICE).tolist()
    assert len(seen) == PROGRAMS * total
    assert set(seen) == set(range(total)), "nothing else runs here, so all of them are used"

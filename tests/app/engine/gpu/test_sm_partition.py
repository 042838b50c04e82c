"""Test the division of a GPU's multiprocessors: the driver's calls, their order, and the errors
where it refuses.

Whether kernels then stay on their side only a GPU can show; `divided` looks, and `python
bench/gpu/run.py` measures it.
"""

from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import pytest
import torch

green = pytest.importorskip("app.engine.gpu.sm_partition", reason="Triton is not made for this machine")
from app.errors import InstanceError  # noqa: E402
from app.placement.partition import Partition  # noqa: E402


class Status(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_NOT_SUPPORTED = 801


class Driver:
    """A fake of cuda.bindings.driver, for 132 multiprocessors given away in eights; `refuses` one
    call."""

    CUresult = Status
    CUdevResourceType = SimpleNamespace(CU_DEV_RESOURCE_TYPE_SM="multiprocessors")
    CUgreenCtxCreate_flags = SimpleNamespace(CU_GREEN_CTX_DEFAULT_STREAM=1)
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)

    def __init__(self, refuses: str = "") -> None:
        self.refuses = refuses
        self.sizes: list[int] = []  # of the contexts made

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("cu") and name == object.__getattribute__(self, "refuses"):
            return lambda *_: (Status.CUDA_ERROR_NOT_SUPPORTED, *[None] * (3 if "Split" in name else 1))
        return object.__getattribute__(self, name)

    def cuDeviceGet(self, index: int) -> Any:
        return Status.CUDA_SUCCESS, f"device {index}"

    def cuDeviceGetDevResource(self, device: str, kind: str) -> Any:
        return Status.CUDA_SUCCESS, (device, kind, 132)

    def cuDevSmResourceSplitByCount(self, groups: int, whole: Any, flags: int, least: int) -> Any:
        given = -(-least // 8) * 8
        assert (groups, flags) == (1, 0) and whole == ("device 2", "multiprocessors", 132)
        return Status.CUDA_SUCCESS, [given], 1, 132 - given

    def cuDevResourceGenerateDesc(self, parts: list[int], count: int) -> Any:
        assert len(parts) == count == 1
        return Status.CUDA_SUCCESS, parts[0]

    def cuGreenCtxCreate(self, size: int, device: str, flags: int) -> Any:
        assert device == "device 2" and flags == 1
        self.sizes.append(size)
        return Status.CUDA_SUCCESS, size

    def cuGreenCtxStreamCreate(self, context: int, flags: int, priority: int) -> Any:
        assert flags == 1 and priority == 0
        return Status.CUDA_SUCCESS, 1000 + context


def test_one_split_gives_drafters_theirs_and_the_verifier_the_rest() -> None:
    driver = Driver()
    assert green.streams(driver, 2, 20) == (1024, 1108)
    assert driver.sizes == [24, 108], "both of the same split, and nothing is left over"


@pytest.mark.parametrize(
    "refuses",
    [
        "cuDeviceGet",
        "cuDeviceGetDevResource",
        "cuDevSmResourceSplitByCount",
        "cuDevResourceGenerateDesc",
        "cuGreenCtxCreate",
        "cuGreenCtxStreamCreate",
    ],
)
def test_a_driver_that_cannot_divide_is_named_with_its_reason(refuses: str) -> None:
    with pytest.raises(InstanceError, match="can be divided: CUDA_ERROR_NOT_SUPPORTED"):
        green.streams(Driver(refuses), 2, 20)


def test_sides_that_share_a_multiprocessor_are_not_real() -> None:
    one, other = (green.Multiprocessors(None, places) for places in ((0, 1, 2), (2, 3)))
    assert not Partition(one, other).is_real
    assert Partition(one, green.Multiprocessors(None, (3,))).about() == {
        "verify_multiprocessors": [0, 1, 2],
        "draft_multiprocessors": [3],
    }


def test_missing_green_contexts_are_reported() -> None:
    with pytest.raises(InstanceError, match="cannot be divided"):
        green.streams(SimpleNamespace(), 0, 16)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> dict[int, tuple[int, ...]]:
    """As far as `divided` looks: 132 multiprocessors; by stream, where its kernels are seen."""
    places = {1: tuple(range(24)), 2: tuple(range(24, 132))}
    properties = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda stream, _: stream)
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: 0)
    monkeypatch.setattr(green, "_driver", lambda: None)
    monkeypatch.setattr(green, "streams", lambda *_: (1, 2))
    monkeypatch.setattr(green, "_side", lambda stream, _: green.Multiprocessors(stream, places.get(stream, range(132))))
    return places


def test_the_first_part_drafts_and_the_rest_verifies(gpu: dict[int, tuple[int, ...]]) -> None:
    sides = green.divided(torch.device("cuda"), 20)
    assert sides.is_real and (len(sides.draft.places), len(sides.verify.places)) == (24, 108)
    assert not green.divided(torch.device("cuda"), 0).is_real, "two streams over all of them"


def test_a_division_that_kernels_do_not_keep_is_refused(gpu: dict[int, tuple[int, ...]]) -> None:
    gpu[1] = (*gpu[1], 131)
    with pytest.raises(InstanceError, match="kernels run on both sides"):
        green.divided(torch.device("cuda"), 20)
    with pytest.raises(InstanceError, match="leaves verifying none of 132"):
        green.divided(torch.device("cuda"), 132)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_kernels_stay_on_their_side() -> None:
    device = torch.device("cuda")
    sides = green.divided(device, 16)
    assert sides.is_real and len(sides.draft.places) >= 16
    assert not green.divided(device, 0).is_real
    total = torch.cuda.get_device_properties(device).multi_processor_count
    with pytest.raises(InstanceError, match="leaves verifying none"):
        green.divided(device, total)

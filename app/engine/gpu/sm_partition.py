"""Divide a GPU's multiprocessors between verifying and drafting: complementary green contexts of one split.

An ordinary stream takes all multiprocessors. Memory bandwidth and the second-level cache stay shared. The driver's own
interface is used: torch's splits may overlap.
"""

import importlib
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from app.errors import InstanceError
from app.placement.partition import Partition
from kernels.sm_probe import multiprocessors

DRIVER = "cuda.bindings.driver"  # comes with torch for CUDA


@dataclass(frozen=True, slots=True)
class Multiprocessors:
    stream: torch.cuda.Stream
    places: tuple[int, ...]  # their numbers, as kernels on the stream see them
    unit: str = "multiprocessors"

    def enter(self) -> None:
        torch.cuda.synchronize()
        torch.cuda.set_stream(self.stream)


def divided(device: torch.device, drafting: int) -> Partition:
    """Return the two sides: at least `drafting` multiprocessors, in eights, and the verifier's; 0: no division.

    Raises InstanceError if driver or device cannot divide, or nothing is left for the verifier.
    """
    torch.zeros(1, device=device)  # torch's context comes first: green contexts belong to it
    total = torch.cuda.get_device_properties(device).multi_processor_count
    if drafting == 0:
        plain = [_side(torch.cuda.Stream(device), total) for _ in range(2)]
        return Partition(plain[0], plain[1])
    if drafting >= total:
        raise InstanceError(f"the plan's partition of {drafting} leaves verifying none of {total} multiprocessors")
    draft, verify = streams(_driver(), device.index or 0, drafting)
    found = Partition(*(_side(torch.cuda.ExternalStream(stream, device), total) for stream in (verify, draft)))
    if not found.is_real:
        raise InstanceError(f"the driver divided the multiprocessors, but kernels run on both sides: {found}")
    return found


def streams(driver: Any, index: int, drafting: int) -> tuple[int, int]:
    try:
        return _streams(driver, index, drafting)
    except (AttributeError, IndexError, RuntimeError) as error:  # a driver or bindings of before green contexts
        raise InstanceError(f"the GPU's multiprocessors cannot be divided: {error}") from error


def _streams(driver: Any, index: int, drafting: int) -> tuple[int, int]:
    device = _done(driver, driver.cuDeviceGet(index))
    kind = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
    whole = _done(driver, driver.cuDeviceGetDevResource(device, kind))
    groups, _, rest = _done(driver, driver.cuDevSmResourceSplitByCount(1, whole, 0, drafting))
    made = [_stream(driver, device, part) for part in (groups[0], rest)]
    return made[0], made[1]


def _stream(driver: Any, device: Any, part: Any) -> int:
    description = _done(driver, driver.cuDevResourceGenerateDesc([part], 1))
    default = driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
    context = _done(driver, driver.cuGreenCtxCreate(description, device, default))
    non_blocking = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
    return int(_done(driver, driver.cuGreenCtxStreamCreate(context, non_blocking, 0)))


def _done(driver: Any, answer: tuple[Any, ...]) -> Any:
    status, *given = answer
    if status != driver.CUresult.CUDA_SUCCESS:
        reason = getattr(status, "name", status)
        raise InstanceError(f"the plan's partition needs a GPU whose multiprocessors can be divided: {reason}")
    return given[0] if len(given) == 1 else tuple(given)


def _side(stream: torch.cuda.Stream, total: int) -> Multiprocessors:
    device, graph = torch.device("cuda", stream.device_index), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        launched = multiprocessors(total, device).tolist()
        with torch.cuda.graph(graph, stream=stream):
            replayed = multiprocessors(total, device)
        graph.replay()
        return Multiprocessors(stream, tuple(sorted({*launched, *replayed.tolist()})))


def _driver() -> ModuleType:
    try:
        return importlib.import_module(DRIVER)
    except ImportError as error:
        raise InstanceError(f"dividing a GPU's multiprocessors needs {DRIVER}: {error}") from error

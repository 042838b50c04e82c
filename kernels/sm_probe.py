"""Find the multiprocessors of a GPU that the current stream's kernels run on, from the hardware.

    out[p] = the number of the multiprocessor that program p runs on

Programs wait a while, so that they spread over all.
"""

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda

from kernels.compile import CompileCase

# mypy: allow-untyped-defs, allow-incomplete-defs
# (a kernel's arguments get their types from each launch; the functions around it are typed)

PROGRAMS = 8  # for each multiprocessor
STAY_NS = 200_000


def multiprocessors_reference(total: int, device: torch.device) -> torch.Tensor:  # (PROGRAMS * total,) int32
    """Return zeros, (PROGRAMS * total,) int32: the specification on a CPU."""
    return torch.zeros(PROGRAMS * total, dtype=torch.int32, device=device)


@triton.jit
def _multiprocessors_kernel(
    out_ptr,  # (programs,) int32
    STAY_NS: tl.constexpr,
):
    started = cuda.globaltimer()
    now = started
    while now - started < STAY_NS:
        now = cuda.globaltimer()
    tl.store(out_ptr + tl.program_id(0), cuda.smid())


def multiprocessors(total: int, device: torch.device) -> torch.Tensor:  # (PROGRAMS * total,) int32
    """Launch the probe on the current stream of a GPU of `total` multiprocessors; (PROGRAMS * total,) int32."""
    if device.type == "cpu":
        return multiprocessors_reference(total, device)
    out = torch.empty(PROGRAMS * total, dtype=torch.int32, device=device)
    _multiprocessors_kernel[(len(out),)](out, STAY_NS=STAY_NS)
    return out


def compile_cases() -> Iterator[CompileCase]:
    yield CompileCase("132 multiprocessors", lambda: multiprocessors(132, torch.device("meta")), reads_rows=False)

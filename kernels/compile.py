"""Compile every Triton kernel without a GPU, and report what it needs.

A case calls a kernel's launcher on meta tensors, with Triton's launch replaced by a compilation of the same
specialisation; pointers count as aligned to 16 bytes. `python -m kernels.compile` prints a JSON line for each kernel,
in a process without TRITON_INTERPRET.
"""

import contextlib
import importlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction, MockTensor

MODULES = (  # every module here has a function compile_cases()
    "kernels.layers.fixed_linear",
    "kernels.layers.gated_silu",
    "kernels.attention.kv_commit",
    "kernels.sm_probe",
    "kernels.attention.ragged_attention",
    "kernels.layers.rms_norm",
    "kernels.layers.rotary_store",
    "kernels.sampling.target_token_batch",
    "kernels.sampling.top_logprobs",
)
CAPABILITIES = (80, 89, 90, 100, 120)  # A100; L4 and RTX 40; H100 and H200; B200; RTX 50
OTHER_DTYPES_ON = (80, 90)  # models come in bfloat16: what another dtype changes shows on these


@dataclass(frozen=True, slots=True)
class CompileCase:
    name: str
    launch: Callable[[], object]
    has_dot: bool = False  # one of the kernels it launches must use tensor cores
    disassemble: bool = False  # nearly a second each
    reads_rows: bool = True  # one of them must read 16 bytes at a time, and none single values of 16 bits
    other_dtype: bool = False  # the same as another case, but for the dtype: compiled for `OTHER_DTYPES_ON` alone

    def is_for(self, capability: int) -> bool:
        return not self.other_dtype or capability in OTHER_DTYPES_ON


@dataclass(frozen=True, slots=True)
class Compiled:
    module: str
    case: str
    kernel: str
    capability: int  # 80 for sm_80
    has_dot: bool  # of the case
    reads_rows: bool  # of the case
    other_dtype: bool  # of the case
    threads: int  # of one program
    registers: int  # of one thread
    stack_bytes: int  # of one thread: what does not fit the registers is spilled there
    shared_bytes: int  # of one program
    buffers: list[str]  # in shared memory, filled ahead in its loops: "2x64x128xbf16" is two of 64 rows of 128
    ptx: str
    sass: str  # empty if the case does not ask for it


class NoGPU:
    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


def compiled(module: str, case: CompileCase, capability: int) -> list[Compiled]:
    """Raises RuntimeError if `case` launches no kernel."""
    with _launches_compile(capability) as seen:
        case.launch()
    if not seen:
        raise RuntimeError(f"{module}, {case.name}: nothing was launched")
    return [_read(module, case, capability, kernel) for kernel in seen]


@contextlib.contextmanager
def _launches_compile(capability: int) -> Iterator[list[Any]]:
    """Make `kernel[grid](...)` compile only, within the context; yield the list of compilations."""
    seen: list[Any] = []
    launch = JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        mocked = [MockTensor(arg.dtype) if isinstance(arg, torch.Tensor) else arg for arg in args]
        self.device_caches.clear()  # they know a device by its number, and all of ours are number 0
        kernel = launch(self, *mocked, grid=grid, warmup=True, **kwargs)
        seen.append(kernel)
        return kernel

    driver.set_active(NoGPU(capability))
    JITFunction.run = run
    try:
        yield seen
    finally:
        JITFunction.run = launch


def _read(module: str, case: CompileCase, capability: int, kernel: Any) -> Compiled:
    usage = _cuobjdump(kernel.asm["cubin"], "--dump-resource-usage")
    return Compiled(
        module=module,
        case=case.name,
        kernel=kernel.metadata.name,
        capability=capability,
        has_dot=case.has_dot,
        reads_rows=case.reads_rows,
        other_dtype=case.other_dtype,
        threads=32 * kernel.metadata.num_warps,
        registers=int(re.findall(r"REG:(\d+)", usage)[-1]),
        stack_bytes=int(re.findall(r"STACK:(\d+)", usage)[-1]),
        shared_bytes=kernel.metadata.shared,
        buffers=re.findall(r"ttg\.local_alloc : \(\) -> !ttg\.memdesc<([^,]+),", kernel.asm["ttgir"]),
        ptx=kernel.asm["ptx"],
        sass=_cuobjdump(kernel.asm["cubin"], "-sass") if case.disassemble else "",
    )


def _cuobjdump(cubin: bytes, what: str) -> str:
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([tool, what, file.name], check=True, capture_output=True, text=True).stdout


def main() -> None:
    for capability in map(int, sys.argv[1:] or CAPABILITIES):
        for module in MODULES:
            for case in importlib.import_module(module).compile_cases():
                for kernel in compiled(module, case, capability) if case.is_for(capability) else ():
                    print(json.dumps(asdict(kernel)), flush=True)


if __name__ == "__main__":
    main()

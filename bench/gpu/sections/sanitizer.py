"""Run the tests of the kernels that write in place under NVIDIA's compute-sanitizer: stray accesses, and races.

They are its small shapes' tests, in a process of their own; the tool slows kernels a hundredfold.
"""

import os
import shutil

from bench.gpu.sections.kernels import DEVICE_TESTS, OUT_OF_TIME, run_tests
from bench.gpu.setting import Figures, Setting

TOOL = "compute-sanitizer"
CHECKS = ("memcheck", "racecheck")
KERNELS = ("kv_commit", "rotary_store", "rms_norm")
FOUND = 99  # the tool's exit status where it found errors


def measure(setting: Setting, found: Figures) -> None:
    """Write what each check finds in each kernel into `found`. Raises AssertionError where it finds an error."""
    if setting.device.type != "cuda" or shutil.which(TOOL) is None:
        found["left_out"] = f"{TOOL} is not here, or there is no GPU"
        print(found["left_out"], flush=True)
        return
    for check in CHECKS:
        for kernel in KERNELS:
            name = f"{kernel}, {check}"
            found[name] = _run(setting, check, kernel) if setting.has_time() else {"left_out": True}
            print(f"{name:28} {found[name].get('summary', found[name])}", flush=True)
    failed = [name for name, result in found.items() if result.get("status") == FOUND]
    unchecked = [name for name, result in found.items() if result.get("status", OUT_OF_TIME) == OUT_OF_TIME]
    if unchecked:
        found["not_checked"] = unchecked
        print(f"not checked, for want of time: {', '.join(unchecked)}", flush=True)
    if failed:
        raise AssertionError(f"{TOOL} found errors: {', '.join(failed)}")


def _run(setting: Setting, check: str, kernel: str) -> Figures:
    tool = (TOOL, "--tool", check, "--error-exitcode", str(FOUND), "--target-processes", "all")
    words = (str(DEVICE_TESTS / f"{kernel}.py"), "-x", "-k", "not llama")
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    status, output = run_tests(setting, environment, *words, tool=tool)
    if status == OUT_OF_TIME:
        return {"status": status, "summary": "out of time"}
    lines = [line for line in output.splitlines() if "ERROR SUMMARY" in line or "RACECHECK SUMMARY" in line]
    return {
        "status": status,
        "summary": (lines or [output[-200:]])[-1].strip("= "),
        "output": "" if status == 0 else output[-6000:],
    }

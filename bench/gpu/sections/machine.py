"""Measure the machine: its names and versions, its bandwidths and products. Other figures are compared with these."""

import os
import platform
import subprocess

import torch

from app.system import installed
from bench.gpu.setting import Figures, Setting

PACKAGES = ("torch", "triton", "transformers", "numpy", "pydantic", "numba", "llvmlite", "pytest")


def measure(setting: Setting, found: Figures) -> None:
    """Write names, versions and rates into `found`."""
    found |= {"python": platform.python_version(), "host": platform.platform(), "cores": os.cpu_count()}
    found["packages"] = {name: installed(name) for name in PACKAGES}
    found["gcc"] = printed_by("gcc", "--version")  # Triton compiles its launchers with it
    found["cuda"] = torch.version.cuda
    if setting.device.type == "cuda":
        found |= _gpu()
    found |= _bandwidths(setting)
    for name, value in found.items():
        print(f"{name:24} {value}", flush=True)


def _gpu() -> Figures:
    properties = torch.cuda.get_device_properties(0)
    asked = "driver_version,clocks.sm,clocks.mem,power.limit"
    return {
        "gpu": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        asked: printed_by("nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"),
    }


def printed_by(*command: str) -> str:
    """Return the first line that a command prints; where it fails, why."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown: {error}"
    return done.stdout.strip().partition("\n")[0]


def _bandwidths(setting: Setting) -> Figures:
    """Measure rates; a copy counts bytes read and written. Floors use `bandwidth_gb_s`, the higher of copy and read."""
    copied, read = _copied_and_read(setting, 2**18 if setting.is_quick else 2**30)
    setting.free()
    side = 256 if setting.is_quick else 8192
    a, b = torch.randn(2, side, side, device=setting.device).to(setting.dtype).unbind()
    product_ms = setting.device_ms(lambda: a @ b)
    return {
        "copy_gb_s": round(copied, 1),
        "read_gb_s": round(read, 1),
        "bandwidth_gb_s": round(max(copied, read), 1),
        "product_tflop_s": round(2 * side**3 / product_ms / 1e9, 3),
        "launch_ms": round(setting.wall_ms(lambda: a[0].add(1.0)), 4),  # of one small kernel, with waiting for it
    }


def _copied_and_read(setting: Setting, count: int) -> tuple[float, float]:
    source = torch.randn(count, device=setting.device)  # 4 GiB
    target = torch.empty_like(source)
    copy_ms = setting.device_ms(lambda: target.copy_(source))
    read_ms = setting.device_ms(lambda: source.sum())
    return 2 * source.nbytes / copy_ms / 1e6, source.nbytes / read_ms / 1e6

"""Run the tests of every kernel and of the engine on this device, a process a file."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from app.config import ROOT
from bench.gpu.setting import Figures, Setting

DEVICE_TESTS = ROOT / "tests" / "kernels" / "device"
ENGINE_TESTS = ROOT / "tests" / "app" / "engine" / "gpu" / "device" / "target.py"
QUICK_TESTS = ("gated_silu.py",)
OUT_OF_TIME = -1
PROGRAM = """
import sys
from bench.gpu import wheels
wheels.use()
import pytest
sys.exit(pytest.main(["-q", "--noconftest", "-p", "no:cacheprovider", "-W", "default", "--durations=3", *sys.argv[1:]]))
"""


def measure(setting: Setting, found: Figures) -> None:
    """Write each test file's result into `found`. Raises AssertionError for a test that fails."""
    files = sorted(path for path in DEVICE_TESTS.glob("*.py") if "def test_" in path.read_text())
    files = [path for path in files if path.name in QUICK_TESTS] if setting.is_quick else [ENGINE_TESTS, *files]
    workers = max(1, min(7, (os.cpu_count() or 1) // 2))
    with ThreadPoolExecutor(workers) as pool:
        for path, result in zip(files, pool.map(lambda path: _test(path, setting), files), strict=True):
            found[path.stem] = result
            print(f"{path.stem:24} {result['summary']}", flush=True)
    failed = [name for name, result in found.items() if result["status"] != 0]
    for name in failed:
        print(found[name]["output"][-2000:], flush=True)
    if failed:
        raise AssertionError(f"tests failed: {', '.join(failed)}")


def _test(path: Path, setting: Setting) -> Figures:
    """Run one file of tests; return its status, last line, and the output if it failed."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    if setting.device.type != "cuda":
        environment["TRITON_INTERPRET"] = "1"
    status, output = run_tests(setting, environment, str(path))
    if status == OUT_OF_TIME:
        return {"status": status, "summary": "out of time", "output": ""}
    summary = re.findall(r"^.*\b\d+ (?:passed|failed|error|skipped).*$", output, re.MULTILINE)
    is_good = status == 0 and bool(re.search(r"\d+ passed", output))
    return {
        "status": 0 if is_good else status or 1,
        "summary": summary[-1].strip("= ") if summary else output[-200:],
        "output": "" if is_good else output[-12000:],
    }


def run_tests(
    setting: Setting, environment: dict[str, str], *words: str, tool: tuple[str, ...] = ()
) -> tuple[int, str]:
    """Run pytest with these words in a process of its own, perhaps under a tool; return status and output."""
    command = [*tool, sys.executable, "-c", PROGRAM, *words]
    environment = environment | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    limit_s = max(1.0, setting.left_s())
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return OUT_OF_TIME, ""
    return done.returncode, done.stdout + done.stderr

"""Make the environment of verifiers on vLLM at its first use: its packages are others than Paceline's own."""

import fcntl
import hashlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from app.config import ROOT
from app.errors import InstanceError

LOCK = ROOT / "app" / "engine" / "vllm" / "requirements.lock"
NEEDED_BYTES = 5 * 10**9  # while it is made; 3.4 GB once it is
POLL_S = 1.0
LINES = 12  # of pip's output that a failure shows


def is_made(home: Path) -> bool:
    folder = home / "vllm"
    marker = folder / "installed"
    return marker.is_file() and marker.read_text() == _wanted() and (folder / "bin" / "python").exists()


def vllm_python(home: Path, progress: Callable[[str], None]) -> Path:
    """Return its interpreter, after making what lacks, which takes minutes. Raises InstanceError."""
    folder = home / "vllm"
    python, marker = folder / "bin" / "python", folder / "installed"
    home.mkdir(parents=True, exist_ok=True)
    with (home / ".vllm.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_made(home):
            return python
        free = shutil.disk_usage(home).free
        if free < NEEDED_BYTES:
            raise InstanceError(
                f"vLLM's environment needs {NEEDED_BYTES / 1e9:.0f} GB in {home}, where {free / 1e9:.1f} are free; "
                "PACELINE_HOME names another place, PACELINE_VLLM_PYTHON an environment that is there"
            )
        marker.unlink(missing_ok=True)
        log = home / "vllm-install.log"
        log.write_bytes(b"")
        pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check"]
        steps = {
            "virtual environment": [sys.executable, "-m", "venv", "--clear", str(folder)],
            "torch": [*pip, _torch().split("#")[0].split(";")[0].strip()],
            "packages, 3.4 GB in all": [*pip, "--no-deps", "--require-hashes", "-r", str(LOCK)],
        }
        for number, (title, command) in enumerate(steps.items(), start=1):
            _run(f"vLLM's environment [{number}/{len(steps)}] {title}", command, log, progress)
        marker.write_text(_wanted())
    return python


def _torch() -> str:
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    return next(line for line in lines if line.startswith("torch=="))


def _wanted() -> str:
    return hashlib.sha256(LOCK.read_bytes() + _torch().encode()).hexdigest()


def _run(title: str, command: list[str], log: Path, progress: Callable[[str], None]) -> None:
    began_s = time.monotonic()
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        while process.poll() is None:
            progress(f"{title}: {time.monotonic() - began_s:.0f} s")
            time.sleep(POLL_S)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    if process.returncode:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-LINES:])
        raise InstanceError(f"{title} failed (exit {process.returncode}). Its log is {log} and ends:\n{tail}")

"""Run workers of any version of Paceline on one Redis; old code comes from the repository's history.

Nothing of Paceline is imported: processes are started by their command lines, and looked at by their keys in Redis.
"""

import io
import os
import signal
import socket
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import redis

ROOT = Path(__file__).resolve().parents[2]
OLD = "71c93e2"  # the last version before modules and classes were renamed
NAMESPACE = "paceline"
ROLES = ("draft", "fuse", "verify", "control", "beat", "web")  # in the order of deploy/rolling-restart.sh
STOP_S = 60.0


def has(commit: str) -> bool:
    """Return whether this repository's history holds the commit; a source archive or shallow clone has none."""
    command = ["git", "-C", str(ROOT), "cat-file", "-e", f"{commit}^{{commit}}"]
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def unpack(commit: str, folder: Path) -> Path:
    """Write the files of a commit into a folder; return the folder."""
    command = ["git", "-C", str(ROOT), "archive", commit, "app", "kernels", "workers", "web", "drafters"]
    packed = subprocess.run(command, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder


class Workers:
    """Processes of the code below `root`, one of a role; their logs are in `logs`."""

    def __init__(self, root: Path, redis_url: str, logs: Path, environ: Mapping[str, str]) -> None:
        self._root = root
        self._logs = logs
        self._redis = redis.Redis.from_url(redis_url, decode_responses=True)
        self._environ = {
            **os.environ,
            "PYTHONPATH": str(root),
            "PACELINE_CONFIG": os.devnull,
            "PACELINE_KEYS": "",
            **environ,
            "PACELINE_REDIS_URL": redis_url,
            "PACELINE_NAMESPACE": NAMESPACE,
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        }
        self._nodes: dict[str, str] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        logs.mkdir(parents=True, exist_ok=True)

    def start(self, role: str, node: str, port: int = 0) -> None:
        """Start the process of a role. `port`: a web server's, on the loopback interface."""
        command = ["-m", "workers.run", role, "--node", node]
        if role == "web":
            command = ["-m", "web.run", "--host", "127.0.0.1", "--port", str(port)]
        with (self._logs / f"{node}.log").open("wb") as log:
            self._processes[role] = subprocess.Popen(
                [sys.executable, *command],
                env={**self._environ, "PACELINE_NODE": node},
                cwd=self._root,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._nodes[role] = node

    def is_alive(self, role: str) -> bool:
        """Return whether the role's process has a heartbeat in Redis."""
        process, node = self._processes[role], self._nodes[role]
        assert process.poll() is None, f"{node} ended ({process.returncode}):\n{self.log(role)[-2000:]}"
        return bool(self._redis.exists(f"{NAMESPACE}:node:{role}:{node}"))

    def log(self, role: str) -> str:
        """Return all that the role's process has logged."""
        return (self._logs / f"{self._nodes[role]}.log").read_text(errors="replace")

    def stop(self, role: str) -> int:
        """Stop the role's process and wait for its end; return its exit code."""
        process = self._processes.pop(role)
        process.send_signal(signal.SIGTERM)
        return process.wait(STOP_S)

    def kill(self, *roles: str) -> None:
        """Send SIGKILL to these roles, or to all that run."""
        killed = [self._processes.pop(role) for role in roles or tuple(self._processes)]
        for process in killed:
            process.kill()
        for process in killed:
            process.wait(STOP_S)

    def close(self) -> None:
        """Kill all processes that still run."""
        self.kill()
        self._redis.close()


def answers(url: str) -> bool:
    """Return whether a web server serves at this URL."""
    try:
        with urllib.request.urlopen(f"{url}/healthz", timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def free_port() -> int:
    """Find a free loopback port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

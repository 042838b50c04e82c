"""Sample a deployment's processes and its Redis: memory, open files, threads, keys, connections.

Takes a running instance; returns series by resource and process, and restarts. Knows nothing of the
load. Reads /proc, so Linux only.
"""

import os
import threading
import time
from collections.abc import Iterable
from collections.abc import Sequence as Listed
from pathlib import Path
from typing import Any

import matplotlib
import redis

matplotlib.use("Agg")  # writes files; no window is opened
from matplotlib import pyplot

from app.local.instance import Instance, State

UNITS = {
    "memory": "MiB",
    "files": "open files",
    "threads": "threads",
    "redis": "MiB",
    "keys": "keys",
    "connections": "connections",
}
Sample = dict[str, dict[str, float]]  # resource -> process -> value
Series = dict[str, dict[str, list[float]]]


class Watcher(threading.Thread):
    """A thread that samples an instance's processes and its Redis every few seconds.

    Read `series`, `at_s` and `restarts` after `end`. Raises SystemExit when the instance does not
    run.
    """

    def __init__(self, instance: Instance, every_s: float) -> None:
        super().__init__(name="watcher", daemon=True)
        state = instance.running()
        if state is None:
            raise SystemExit("the instance does not run")
        self._instance, self._first, self._every_s = instance, state, every_s
        self._redis: Any = redis.Redis.from_url(state.redis_url)
        self._over = threading.Event()
        self._began_s = time.monotonic()
        self.at_s: list[float] = []
        self.series: Series = {}
        self.restarts: list[str] = []

    def run(self) -> None:
        """Sample until `end`, or until the instance is gone."""
        while not self._over.wait(self._every_s):
            state = self._instance.running()
            if state is None:
                self.restarts.append("the instance is gone")
                return
            if state.processes != self._first.processes:
                self.restarts += [role for role, own in state.processes.items() if own != self._first.processes[role]]
                self._first = state
            self._record(look(state, self._redis))

    def now(self) -> Sample:
        """Return a sample without recording it."""
        return look(self._first, self._redis)

    def pid(self, role: str) -> int:
        """Return the pid of the role's first process."""
        return self._first.processes[role][0].pid

    def end(self) -> None:
        """Stop sampling and wait for the thread."""
        self._over.set()
        self.join()
        self._redis.close()

    def _record(self, sample: Sample) -> None:
        self.at_s.append(round(time.monotonic() - self._began_s, 1))
        for what, values in sample.items():
            for whose, value in values.items():
                self.series.setdefault(what, {}).setdefault(whose, []).append(round(value, 2))


def look(state: State, client: Any) -> Sample:
    """Take a sample now; a process that has just ended counts as 0."""
    pids = {f"{role}-{i}" if i else role: own.pid for role, ids in state.processes.items() for i, own in enumerate(ids)}
    info = client.info()
    return {
        "memory": {name: _number(pid, "VmRSS") / 1024.0 for name, pid in pids.items()},
        "files": {name: _files(pid) for name, pid in pids.items()},
        "threads": {name: _number(pid, "Threads") for name, pid in pids.items()},
        "redis": {"used": info["used_memory"] / 2**20},
        "keys": {"all": float(client.dbsize())},
        "connections": {"clients": float(info["connected_clients"])},
    }


def draw(at_s: Listed[float], series: Series, out: Path) -> None:
    """Draw one panel a resource into a PNG file."""
    figure, axes = pyplot.subplots(
        1, len(series), figsize=(4.0 * len(series), 3.4), squeeze=False, layout="constrained"
    )
    for panel, (what, own) in zip(axes[0], series.items(), strict=True):
        for whose, values in own.items():
            panel.plot([s / 60.0 for s in at_s[-len(values) :]], values, label=whose)
        unit = UNITS.get(what, what)
        panel.set_title(f"{what}, {unit}" if unit != what else what)
        panel.set_xlabel("minutes")
        panel.set_ylim(bottom=0.0)
        if len(own) > 1:
            panel.legend(fontsize="x-small")
    figure.savefig(out, dpi=110)
    pyplot.close(figure)


def cpu_s(pid: int) -> float:
    """Return the processor seconds that a live process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _number(pid: int, name: str) -> float:
    """Return a number of the process's status; VmRSS, its resident memory, is in KiB."""
    return float(sum(int(line.split()[1]) for line in _status(pid) if line.startswith(f"{name}:")))


def _status(pid: int) -> Iterable[str]:
    try:
        return Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return []


def _files(pid: int) -> float:
    try:
        return float(len(os.listdir(f"/proc/{pid}/fd")))
    except OSError:
        return 0.0

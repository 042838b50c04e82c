"""Sample processes and their Redis: memory (MiB), open files, threads, keys, connections. Linux only (/proc)."""

import os
import threading
import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Listed
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, Self

import redis

from app.local.instance import State

SLACK = {"memory": 8.0, "files": 4.0, "threads": 2.0, "redis": 2.0, "keys": 60.0, "connections": 4.0}
GROWTH = 0.05  # share of the median by which a series may rise and still be flat, or by SLACK if that is more
Sample = dict[str, dict[str, float]]  # resource -> process -> value
Series = dict[str, dict[str, list[float]]]


class Watcher(threading.Thread):
    """A thread that samples the processes every few seconds, as a context manager; its `figures` are read after it.

    `running` returns the processes that run now. Raises SystemExit where there are none.
    """

    def __init__(self, running: Callable[[], State | None], every_s: float) -> None:
        super().__init__(name="watcher", daemon=True)
        state = running()
        if state is None:
            raise SystemExit("the instance does not run")
        self._running, self._state, self._every_s = running, state, every_s
        self._redis: Any = redis.Redis.from_url(state.redis_url)
        self._over = threading.Event()
        self._began_s = time.monotonic()
        self.at_s: list[float] = []
        self.series: Series = {}
        self.restarts: list[str] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()
        self._redis.close()

    def run(self) -> None:
        """Sample until the context ends, or the instance is gone."""
        while not self._over.wait(self._every_s):
            state, before = self._running(), self._state.processes
            if state is None:
                self.restarts.append("the instance is gone")
                return
            self.restarts += [role for role, own in state.processes.items() if own != before.get(role)]
            self._state = state
            self.at_s.append(round(time.monotonic() - self._began_s, 1))
            for what, values in look(state, self._redis).items():
                for whose, value in values.items():
                    self.series.setdefault(what, {}).setdefault(whose, []).append(round(value, 2))

    def figures(self, *resources: str) -> dict[str, Any]:
        """Return restarts, and growth and series of these resources, or of all."""
        series = {what: own for what, own in self.series.items() if not resources or what in resources}
        return {
            "restarts": self.restarts,
            "growth": {what: growth(what, own) for what, own in series.items()},
            "at_s": self.at_s,
            "series": series,
        }


def look(state: State, client: Any) -> Sample:
    """Take a sample now; a process that has just ended counts as 0."""
    pids = {f"{role}-{i}" if i else role: own.pid for role, ids in state.processes.items() for i, own in enumerate(ids)}
    info = client.info()
    return {
        "memory": {name: _status(pid, "VmRSS") / 1024.0 for name, pid in pids.items()},
        "files": {name: _files(pid) for name, pid in pids.items()},
        "threads": {name: _status(pid, "Threads") for name, pid in pids.items()},
        "redis": {"used": info["used_memory"] / 2**20},
        "keys": {"all": float(client.dbsize())},
        "connections": {"clients": float(info["connected_clients"])},
    }


def growth(what: str, series: Mapping[str, Listed[float]]) -> dict[str, dict[str, Any]]:
    """Return, by process, the medians of the second and of the last quarter, and whether the last is higher.

    The first quarter fills caches.
    """
    found = {}
    for whose, values in series.items():
        quarter = max(1, len(values) // 4)
        before, after = median(values[quarter : 2 * quarter] or values), median(values[-quarter:])
        is_more = after > before + max(GROWTH * before, SLACK[what])
        found[whose] = {"second quarter": before, "last quarter": after, "highest": max(values), "grew": is_more}
    return found


def grew(figures: Mapping[str, Any]) -> list[str]:
    """List what grew, of a watcher's figures."""
    growths = figures["growth"].items()
    return [f"{what} of {whose}" for what, own in growths for whose, one in own.items() if one["grew"]]


def cpu_s(pid: int) -> float:
    """Return the processor seconds that a live process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _status(pid: int, name: str) -> float:
    """Return a number of the process's status; VmRSS, its resident memory, is in KiB."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return float(sum(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")))
    return 0.0


def _files(pid: int) -> float:
    with suppress(OSError):
        return float(len(os.listdir(f"/proc/{pid}/fd")))
    return 0.0

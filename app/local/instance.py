"""Find and describe the running instances of Paceline on this machine.

`<state>/<name>/` holds state.json (processes and addresses), logs/, redis/ and the lock, which the kernel frees when
the supervisor ends.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from app.errors import InstanceError
from app.request import Message
from app.system import exclusive

DEFAULT = "default"
ROLES = ("web", "control", "fuse", "draft", "verify", "beat", "redis")


class ProcessId(Message):
    """A process, by its number and start time: a later process may get the same number."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> Self | None:
        started = _started(pid)
        return None if started is None else cls(pid=pid, started=started)

    def alive(self) -> bool:
        return _started(self.pid) == self.started

    def memory_bytes(self) -> int:
        """Return the memory of the process and its children; what several share is divided among them."""
        own, found = [self.pid], 0
        for pid in own:
            with suppress(OSError):  # it has just ended, or this is not Linux
                rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
                found += sum(1024 * int(kib) for kib in re.findall(r"^Pss:\s+(\d+) kB", rollup, re.MULTILINE))
                own += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        return found

    def worker(self) -> int:
        """Return the process that does this one's work: a fork with its command line, or itself."""
        with suppress(OSError):
            own = Path(f"/proc/{self.pid}/cmdline").read_bytes()
            for child in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split():
                if Path(f"/proc/{child}/cmdline").read_bytes() == own:
                    return int(child)
        return self.pid


class State(Message):
    """An instance: written by its supervisor, read by other commands."""

    instance: str
    supervisor: ProcessId
    url: str
    redis_url: str
    namespace: str
    model: str = ""  # as clients call it
    began_s: float = 0.0  # wall clock; 0.0: not known
    ready: bool = False  # it has been ready once; app/local/health.py checks whether it still is
    processes: dict[str, tuple[ProcessId, ...]] = {}  # role to processes


class Instance:
    def __init__(self, state: Path, name: str = DEFAULT) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,19}", name):
            raise InstanceError(f"{name!r} is not a valid instance name: use 1 to 20 letters, digits, - and _")
        self.name = name
        self.folder = state.absolute() / name
        self.logs = self.folder / "logs"
        self.redis = self.folder / "redis"
        self._state = self.folder / "state.json"
        self._start = self.folder / "last-start"  # its seconds, then the models

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock of the instance's one supervisor for the block. Raises InstanceError."""
        self.logs.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        with exclusive(self.folder / "lock") as held:
            if not held:
                raise InstanceError(f"instance {self.name!r} is already running or starting")
            yield

    def write(self, state: State) -> None:
        """Replace state.json in one step; only its owner can read it, since the Redis URL holds a password."""
        self.folder.mkdir(parents=True, exist_ok=True)
        scratch = self.folder / ".state.json.part"  # always the same: a full disk leaves one
        with open(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(state.model_dump_json())
        os.replace(scratch, self._state)

    def read(self) -> State | None:
        """Read the state that was written last, even by a supervisor that is dead."""
        try:
            return State.model_validate_json(self._state.read_text())
        except (FileNotFoundError, ValueError):  # none, or damaged
            return None

    def last_start_s(self, models: str) -> float | None:
        """Return how long the last start took, of the same models."""
        with suppress(OSError, ValueError):
            seconds, _, named = self._start.read_text().partition(" ")
            return float(seconds) if named == models else None
        return None

    def keep_start(self, models: str, seconds: float) -> None:
        with suppress(OSError):  # a full disk
            self._start.write_text(f"{seconds:.1f} {models}")

    def running(self) -> State | None:
        state = self.read()
        return state if state is not None and state.supervisor.alive() else None

    def clear(self) -> None:
        self._state.unlink(missing_ok=True)


def running(state: Path) -> dict[str, State]:
    names = sorted(path.parent.name for path in state.glob("*/state.json"))
    found = {name: Instance(state, name).running() for name in names}
    return {name: value for name, value in found.items() if value is not None}


def _started(pid: int) -> str | None:
    """Read a process's start time, as the system writes it; None for a dead process or a zombie."""
    if sys.platform != "linux":
        return _started_by_ps(pid)
    with suppress(OSError):
        # The name in parentheses may hold spaces and parentheses itself: count after the last one.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]
    return None


def _started_by_ps(pid: int) -> str | None:
    command = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
    fields = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    return None if not fields or fields[0].startswith("Z") else " ".join(fields[1:])


def find(folder: Path, name: str | None) -> tuple[Instance, State | None]:
    """Find the named instance; else the default one if it runs, else the only one that runs."""
    if name is None:
        name = _meant(running(folder))
    instance = Instance(folder, name)
    return instance, instance.running()


def _meant(found: dict[str, State]) -> str:
    if DEFAULT in found or not found:
        return DEFAULT
    if len(found) > 1:
        raise InstanceError(f"several instances are running ({', '.join(found)}); choose one with --instance")
    return next(iter(found))

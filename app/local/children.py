"""Keep child processes alive, and end them with their parent.

For one thread: on Linux a child dies when the thread that started it ends.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from app.local.instance import ProcessId

FIRST_DELAY_S = 0.2  # before the second restart in a row; doubles with every death
LONGEST_DELAY_S = 5.0
STABLE_S = 10.0  # a process that lived this long starts again at once
GRACE_S = 10.0  # between the request to stop and the kill
LOG_BYTES = 10_000_000  # a longer log is copied aside and emptied
PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass(frozen=True, slots=True)
class Service:
    """A process to keep running. Lower `stop_order` stops first."""

    role: str
    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    stop_order: int = 0
    last_signal: signal.Signals = signal.SIGKILL  # sent to it when the supervisor is killed
    cwd: Path | None = None
    also: tuple[str, ...] = ()  # other roles that it has
    hint: str = ""  # what to do when it does not start

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role, *self.also)


@dataclass(slots=True)
class Child:
    service: Service
    process: subprocess.Popen[bytes] | None = None
    started_s: float = 0.0
    due_s: float = 0.0  # when it is started again
    delay_s: float = FIRST_DELAY_S
    deaths: int = 0  # in a row, none of them after a stable life


class Children:
    """Start services, restart those that die, stop all. `changed` is called when the processes change."""

    def __init__(self, logs: Path, changed: Callable[["Children"], None] = lambda _: None) -> None:
        self._logs = logs
        self._changed = changed
        self._is_reported = True
        self._children: list[Child] = []

    def start(self, services: Sequence[Service]) -> None:
        added = [Child(service) for service in services]
        self._children += added
        for child in added:
            self._spawn(child)
        self._changed(self)

    def tend(self) -> None:
        """Restart dead processes whose delay is over. Never waits."""
        now = time.monotonic()
        changed = False
        for child in self._children:
            if child.process is not None and child.process.poll() is not None:
                self._record_death(child, now)
                changed = True
            if child.process is None and child.due_s <= now:
                self._spawn(child)
                changed = True
            _bound(self.log(child.service))
        if changed or not self._is_reported:
            self._report()

    def pause(self, longest_s: float) -> float:
        due = [child.due_s for child in self._children if child.process is None]
        return max(0.0, min([longest_s, *(due_s - time.monotonic() for due_s in due)]))

    def pid(self, name: str) -> int | None:
        return next((c.process.pid for c in self._children if c.service.name == name and c.process is not None), None)

    def kill(self, name: str) -> None:
        """Kill the service's process with its own children; `tend` starts it again."""
        if (pid := self.pid(name)) is not None:
            _kill_group(pid)

    def restless(self, deaths: int) -> Service | None:
        return next((child.service for child in self._children if child.deaths >= deaths), None)

    def processes(self) -> dict[str, tuple[ProcessId, ...]]:
        found: dict[str, tuple[ProcessId, ...]] = {role: () for child in self._children for role in child.service.roles}
        for child in self._children:
            identity = ProcessId.of(child.process.pid) if child.process is not None else None
            if identity is not None:
                for role in child.service.roles:
                    found[role] += (identity,)
        return found

    def stop(self, grace_s: float = GRACE_S) -> None:
        """Stop all, one stop order after another; a process still alive after `grace_s` is killed."""
        by_order = sorted(self._children, key=lambda child: child.service.stop_order)
        for _, group in groupby(by_order, key=lambda child: child.service.stop_order):
            _stop([child.process for child in group if child.process is not None], grace_s)
        self._children = []
        self._report()

    def log(self, service: Service) -> Path:
        return self._logs / f"{service.name}.log"

    def _report(self) -> None:
        """Report the processes; what a full disk prevents comes with the next `tend`."""
        self._is_reported = False
        with suppress(OSError):
            self._changed(self)
            self._is_reported = True

    def _spawn(self, child: Child) -> None:
        service = child.service
        log = self.log(service)
        with log.open("ab") as output:
            child.process = subprocess.Popen(
                service.argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **service.env},
                cwd=service.cwd,
                start_new_session=True,  # Ctrl-C reaches the supervisor alone, which stops the others in order
                preexec_fn=bound_to_parent(service.last_signal),
            )
        child.started_s = time.monotonic()

    def _record_death(self, child: Child, now: float) -> None:
        assert child.process is not None
        stable = now - child.started_s >= STABLE_S
        delay = 0.0 if stable else child.delay_s
        child.deaths = 1 if stable else child.deaths + 1
        child.due_s, child.delay_s = now + delay, max(FIRST_DELAY_S, min(2 * delay, LONGEST_DELAY_S))
        _kill_group(child.process.pid)  # its own children must not outlive it
        with suppress(OSError), self.log(child.service).open("a") as log:  # a full disk must not end the rest
            log.write(f"-- {child.service.name} ended ({child.process.returncode}); again in {delay:.1f} s\n")
        child.process = None


def bound_to_parent(last_signal: signal.Signals) -> Callable[[], None]:
    """Make the function that asks the kernel, after a fork, for a signal at the parent's death."""
    parent = os.getpid()

    def bind() -> None:
        if _libc is not None:
            _libc.prctl(PR_SET_PDEATHSIG, int(last_signal), 0, 0, 0)
        if os.getppid() != parent:  # it died before the call above
            os._exit(1)

    return bind


def _stop(processes: list[subprocess.Popen[bytes]], grace_s: float) -> None:
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + grace_s
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _kill_group(process.pid)


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _bound(log: Path) -> None:
    """Keep a log's past in one file beside it; its process, which appends, goes on at the beginning.

    Lines that come between the copy's end and the cut are lost: microseconds, once in LOG_BYTES.
    """
    if log.exists() and log.stat().st_size > LOG_BYTES:
        with suppress(OSError):  # no room for a copy: the log is bounded all the same
            shutil.copyfile(log, log.with_suffix(".log.1"))
        os.truncate(log, 0)

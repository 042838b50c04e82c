"""Supervise an instance's processes: start them, restart the dead, stop all on a signal.

Runs in the foreground, in one thread, until SIGINT, SIGTERM or SIGHUP.
"""

import logging
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self

from app.errors import InstanceError
from app.local.children import Children, Service

START_S = 300.0  # longest time in which a start does not get on; a model loads and its costs are measured in it
POLL_S = 0.2  # between two checks of readiness
IDLE_S = 1.0  # between two checks of the children without a signal
SILENT_S = 60.0  # without a heartbeat: a process that is stopped, or stuck in the kernel, is started again
LOOK_S = 5.0  # between two looks at the heartbeats
MAX_DEATHS = 5  # in a row, while starting: then it will not come up
log = logging.getLogger(__name__)
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(Exception):
    """A signal ended a wait."""


class Signals:
    """Wait for signals: `wait` returns early for a dead child or a stop signal.

    The death of `parent`, if one is given, is a stop signal, too.
    """

    def __init__(self, parent: int | None = None) -> None:
        self._parent = parent
        self._stopped = False
        self._reader, self._writer = socket.socketpair()

    def __enter__(self) -> Self:
        self._writer.setblocking(False)
        self._reader.setblocking(False)
        self._old_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        handlers = dict.fromkeys(STOPPING, self._stop) | {signal.SIGCHLD: _nothing}
        self._old = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._old_fd)
        self._reader.close()
        self._writer.close()

    @property
    def stopping(self) -> bool:
        return self._stopped or self._parent not in (None, os.getppid())

    def wait(self, seconds: float) -> None:
        if not self.stopping and select.select([self._reader], [], [], seconds)[0]:
            self._reader.recv(4096)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopped = True


class Supervisor:
    def __init__(self, children: Children, signals: Signals) -> None:
        self._children = children
        self._signals = signals

    def start(self, services: Sequence[Service], ready: Callable[[], str | None], limit_s: float = START_S) -> None:
        self._children.start(services)
        met: set[str] = set()  # what was missing so far
        while missing := ready():
            self._children.tend()
            if self._signals.stopping:
                raise Stopped
            if (dying := self._children.restless(MAX_DEATHS)) is not None:
                raise InstanceError(f"{dying.name} does not start. {self._last_words(dying)}")
            if missing not in met:  # the start gets on, however slow: the first one compiles, perhaps on a busy machine
                met.add(missing)
                deadline = time.monotonic() + limit_s
            elif time.monotonic() > deadline:
                raise InstanceError(f"the start has not got on for {limit_s:.0f} s: {missing}")
            self._signals.wait(POLL_S)

    def watch(self, live: Callable[[], Mapping[str, str] | None] = lambda: None) -> None:
        """`live` returns the owners of the services' heartbeats by name; None where they are not known."""
        silence, looked_s = Silence(), time.monotonic()
        while not self._signals.stopping:
            self._children.tend()
            if (passed_s := time.monotonic() - looked_s) >= LOOK_S:
                for name in silence.look(live(), self._children.pid, min(passed_s, 2 * LOOK_S)):
                    log.error("%s has had no heartbeat for %.0f s: it is killed and started again", name, SILENT_S)
                    self._children.kill(name)
                looked_s = time.monotonic()
            self._signals.wait(self._children.pause(IDLE_S))

    def _last_words(self, service: Service) -> str:
        log = self._children.log(service)
        lines = log.read_text(errors="replace").splitlines()[-15:]
        return f"Its log is {log} and ends:\n" + "\n".join([*lines, service.hint]).rstrip()


class Silence:
    """Time how long services have had no heartbeat, by process: one that has had none yet still starts."""

    def __init__(self) -> None:
        self._silent_s: dict[str, float] = {}
        self._owners: dict[str, str] = {}  # of the last heartbeat, which outlasts its process for some seconds
        self._pids: dict[str, int | None] = {}  # of those that have had one

    def look(self, live: Mapping[str, str] | None, pid: Callable[[str], int | None], passed_s: float) -> list[str]:
        """Return those that are silent for SILENT_S, each once; `live` has the heartbeats' owners."""
        if live is None:
            self._silent_s.clear()
            return []
        for name, owner in live.items():
            if self._owners.get(name) != owner:
                self._owners[name], self._pids[name] = owner, pid(name)
            self._silent_s[name] = 0.0
        found = []
        for name, known in list(self._pids.items()):
            self._silent_s[name] = self._silent_s.get(name, 0.0) + passed_s * (name not in live)
            if known is None or known != pid(name):
                del self._pids[name]
            elif self._silent_s[name] >= SILENT_S:
                found.append(name)
                del self._pids[name]
        return found


@contextmanager
def supervising(children: Children, parent: int | None = None) -> Iterator[Supervisor]:
    """Make a supervisor for the block, and stop all children at its end."""
    with Signals(parent) as signals:
        try:
            yield Supervisor(children, signals)
        finally:
            children.stop()


def _nothing(number: int, frame: FrameType | None) -> None:
    """Handle SIGCHLD, which would interrupt no wait without a handler."""

"""Supervise an instance's processes: start them, restart the dead, stop all on a signal.

Runs in the foreground, in one thread, until SIGINT, SIGTERM or SIGHUP.
"""

import select
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self

from app.errors import InstanceError
from app.local.children import Children, Service

START_S = 300.0  # longest start; a model loads and its costs are measured in it
POLL_S = 0.2  # between two checks of readiness
IDLE_S = 1.0  # between two checks of the children without a signal
MAX_DEATHS = 5  # in a row, while starting: then it will not come up
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(Exception):
    """A signal ended a wait."""


class Signals:
    """Wait for signals: `wait` returns early for a dead child or a stop signal."""

    def __init__(self) -> None:
        self.stopping = False
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

    def wait(self, seconds: float) -> None:
        if not self.stopping and select.select([self._reader], [], [], seconds)[0]:
            self._reader.recv(4096)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.stopping = True


class Supervisor:
    def __init__(self, children: Children, signals: Signals) -> None:
        self._children = children
        self._signals = signals

    def start(self, services: Sequence[Service], ready: Callable[[], str | None], limit_s: float = START_S) -> None:
        self._children.start(services)
        deadline = time.monotonic() + limit_s
        while missing := ready():
            self._children.tend()
            if self._signals.stopping:
                raise Stopped
            if (dying := self._children.restless(MAX_DEATHS)) is not None:
                raise InstanceError(f"{dying.name} does not start. {self._last_words(dying)}")
            if time.monotonic() > deadline:
                raise InstanceError(f"the instance is not ready after {limit_s:.0f} s: {missing}")
            self._signals.wait(POLL_S)

    def watch(self) -> None:
        while not self._signals.stopping:
            self._children.tend()
            self._signals.wait(self._children.pause(IDLE_S))

    def _last_words(self, service: Service) -> str:
        log = self._children.log(service)
        lines = log.read_text(errors="replace").splitlines()[-15:]
        return f"Its log is {log} and ends:\n" + "\n".join(lines)


@contextmanager
def supervising(children: Children) -> Iterator[Supervisor]:
    """Make a supervisor for the block, and stop all children at its end."""
    with Signals() as signals:
        try:
            yield Supervisor(children, signals)
        finally:
            children.stop()


def _nothing(number: int, frame: FrameType | None) -> None:
    """Handle SIGCHLD, which would interrupt no wait without a handler."""

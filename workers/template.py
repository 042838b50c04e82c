"""Run a worker as a fork of a process that has loaded everything, and fork again at once when it is killed.

The loaded process has no connection and runs nothing. A fork has none of its threads: `kernels.cpu.threads` starts
its own anew.
"""

import gc
import logging
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable
from types import FrameType
from typing import NamedTuple

from app.local.children import bound_to_parent

log = logging.getLogger(__name__)
STABLE_S = 2.0
MOST_DEATHS = 5  # in a row, each sooner than STABLE_S: then the whole process is started again


class Life(NamedTuple):
    owner: str  # the worker's random identity
    predecessor: str = ""  # that of the killed worker before it


class Template:
    def __init__(self) -> None:
        self._worker = 0  # process id
        self._stopping = False

    def run(self, serve: Callable[[Life], int], *, forks: bool = True) -> int:
        """Return, in each fork, what `serve` returns there, and here the exit status when all is over.

        A worker that ends by itself, or fails, is not replaced: its supervisor starts all again. If not `forks`, this
        process is the worker.
        """
        if not forks or sys.platform != "linux":  # elsewhere a fork would outlive its killed template
            return serve(Life(uuid.uuid4().hex))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        life, deaths = Life(uuid.uuid4().hex), 0
        gc.collect()
        gc.freeze()  # a collection in a fork would copy every page that it looks at
        while True:
            bind, began_s = bound_to_parent(signal.SIGKILL), time.monotonic()
            signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
            self._worker = os.fork()
            if not self._worker:
                bind()
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))
            if not self._worker:
                return serve(life)
            code = os.waitstatus_to_exitcode(os.waitpid(self._worker, 0)[1])
            deaths = 1 if time.monotonic() - began_s >= STABLE_S else deaths + 1
            if self._stopping or code >= 0 or deaths == MOST_DEATHS:
                return max(0, code)
            log.error("the worker was killed (signal %d); another takes its place", -code)
            life = Life(uuid.uuid4().hex, life.owner)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True
        if self._worker and number == signal.SIGTERM:  # a terminal sends SIGINT to the worker as well
            os.kill(self._worker, signal.SIGTERM)


def in_fork(work: Callable[[], object]) -> None:
    """Do the work in a forked process, for what it leaves in files."""
    if not (worker := os.fork()):
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    os.waitpid(worker, 0)

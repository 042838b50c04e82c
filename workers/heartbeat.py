"""Beat for a worker process: a thread that renews its leases, reports its progress, and does its regular tasks.

A frozen process freezes its heartbeat too, so its leases run out and others take over. Progress is reported apart from
being alive: a process that hangs in one step still has a heartbeat, but its progress stands still. When one piece of
work has taken longer than any can, the heartbeat ends the process, so that it is started again. Time in which the
whole process was frozen is not counted.
"""

import faulthandler
import logging
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from app.errors import StoreUnavailable
from app.metrics import BUSY
from app.verifier.metrics import RequestProgress
from workers.deployment import Deployment
from workers.sweep import Sweep
from workers.tracing.recorder import Recorder

log = logging.getLogger(__name__)
HUNG_S = 180.0  # one step or one batch of drafts; far beyond a long prompt's chunk on a slow machine
LONGEST_LOOK_S = 12.0  # between two looks, that counts as work: a heartbeat may wait for Redis twice
STDERR = 2  # the process's own


class HeartbeatTask(Protocol):
    """Work that a process does regularly, in its heartbeat's thread. One that fails is tried again at the next beat."""

    def beat(self) -> None:
        """Do what is due, four times a lease. Raises StoreUnavailable."""
        ...

    def close(self) -> None:
        """Write what must not be lost: the process ends. Raises StoreUnavailable."""
        return None


class Heartbeat(threading.Thread):
    """Beat for one worker. `owner` is this process's identity: random, so that no other process can come back as it.

    `info`: facts that the worker publishes. `progress`: how far requests are, for their timelines.
    """

    def __init__(
        self,
        deployment: Deployment,
        kind: str,
        node: str,
        *,
        owner: str | None = None,
        info: Callable[[], dict[str, Any]] = dict,
        progress: Callable[[], Mapping[str, RequestProgress]] = dict,
    ) -> None:
        super().__init__(name=f"heartbeat-{node}", daemon=True)
        self.owner: Final = owner or uuid.uuid4().hex
        self.kind: Final = kind
        self.node: Final = node
        self.recorder: Final = Recorder(deployment.settings, deployment.traces, kind, node)
        self._deployment = deployment
        self._info = info
        self._progress = progress
        self._tasks: Sequence[HeartbeatTask] = ()
        self._sweep = Sweep(deployment)
        self._mailboxes: set[str] = set()
        self._mailboxes_lock = threading.Lock()
        self._busy_since_s: float | None = None  # monotonic
        self._interval_s = deployment.settings.lease_s / 4
        self._hang_watch = HangWatch(LONGEST_LOOK_S)
        self._load_fraction = LoadFraction()
        self._stopping = threading.Event()

    def begin(self, tasks: Sequence[HeartbeatTask] = ()) -> None:
        """Take the node's name, waiting for a dead namesake's lease to run out, then beat on.

        Each beat does the tasks in their order, writes the spans of work, and sweeps.
        """
        self._tasks = tuple(tasks)
        while not self._renew():
            log.info("%s is still held by another process; waiting", self.node)
            time.sleep(self._interval_s)
        self.start()

    def end(self) -> None:
        """Stop beating, close the tasks, and give the name up at once."""
        self._stopping.set()
        if self.is_alive():
            self.join(timeout=self._deployment.settings.lease_s)  # a beat under way would take the name again
        try:
            for task in self._tasks:
                task.close()
            self._record()
            self._deployment.nodes.retire(self.kind, self.node, self.owner)
        except StoreUnavailable as error:
            log.warning("could not retire: %s", error)
        self.recorder.close()

    def begin_work(self) -> None:
        """Begin a piece of work: from now on progress stands still."""
        self._busy_since_s = now_s = time.monotonic()
        self._load_fraction.begin_work(now_s)
        self.recorder.begin_work()

    def end_work(self) -> None:
        """End the piece of work under way: that is progress."""
        now_s, since_s = time.monotonic(), self._busy_since_s
        self._busy_since_s = None
        self._load_fraction.end_work(now_s)
        self.recorder.end_work()
        if since_s is not None:
            self._deployment.counters.count(BUSY, self.kind, by=now_s - since_s)

    def mark_idle(self) -> None:
        """Say that the piece of work under way is optional: it does not make the process busy."""
        self._load_fraction.mark_idle()

    def working_on(self, request_ids: Iterable[str]) -> None:
        """Say which requests the piece of work under way is for; for timelines only."""
        self.recorder.working_on(request_ids)

    def attend(self, mailbox: str) -> bool:
        """Renew this mailbox's lease from now on; False if this process does so already."""
        with self._mailboxes_lock:
            if mailbox in self._mailboxes:
                return False
            self._mailboxes.add(mailbox)
            return True

    def stop_attending(self, mailbox: str) -> None:
        """Renew this mailbox's lease no more."""
        with self._mailboxes_lock:
            self._mailboxes.discard(mailbox)

    def attends(self, mailbox: str) -> bool:
        """Return whether a thread of this process attends the mailbox."""
        return mailbox in self._mailboxes

    def run(self) -> None:
        """Beat until the end."""
        while not self._stopping.wait(self._interval_s):
            self._end_if_hung()
            try:
                if not self._renew():
                    log.error("another process took over as %s; leaving", self.node)
                    os.kill(os.getpid(), signal.SIGTERM)
                    return
                for task in self._tasks:
                    task.beat()
                self._record()
                self._sweep.beat()
            except StoreUnavailable as error:
                log.warning("no heartbeat: %s", error)
            except Exception:  # the heartbeat must outlive whatever a task runs into
                log.exception("a heartbeat failed")

    def _renew(self) -> bool:
        """Renew the leases of the node and its mailboxes; False if the node's is another process's."""
        progress_s = time.time() - self._busy_for_s()
        info = {**self._info(), "pid": os.getpid(), "busy": round(self._load_fraction.read(time.monotonic()), 3)}
        is_ours = self._deployment.nodes.beat(self.kind, self.node, self.owner, progress_s=progress_s, info=info)
        for mailbox in list(self._mailboxes):
            self._deployment.mailboxes.renew(mailbox, self.owner)
        return is_ours

    def _end_if_hung(self) -> None:
        if self._hang_watch.look(self._busy_since_s, time.monotonic()) <= HUNG_S:
            return
        try:
            log.critical("%s has been at one piece of work for %.0f s; ending it", self.node, HUNG_S)
            faulthandler.dump_traceback(STDERR)  # in the place of `sys.stderr`, Celery has a log
        finally:
            os.kill(os.getpid(), signal.SIGKILL)

    def _busy_for_s(self) -> float:
        since_s = self._busy_since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    def _record(self) -> None:
        admissions = self._deployment.admissions
        while admissions:
            self.recorder.record(admissions.popleft())
        self.recorder.flush(self._progress())


class HangWatch:
    """Measure how long one piece of work has taken while the process ran; looked at by one thread, often."""

    def __init__(self, longest_look_s: float) -> None:
        """Count no more than `longest_look_s` between two looks: in the rest the whole process stood still."""
        self._longest_look_s = longest_look_s
        self._since_s: float | None = None  # when the work began that was under way at the last look
        self._looked_s = 0.0
        self._worked_s = 0.0

    def look(self, since_s: float | None, now_s: float) -> float:
        """Return the seconds of the work that began at `since_s` (monotonic); None: none is under way."""
        if since_s != self._since_s:
            self._since_s, self._worked_s, self._looked_s = since_s, 0.0, now_s if since_s is None else since_s
        self._worked_s += min(self._longest_look_s, now_s - self._looked_s)
        self._looked_s = now_s
        return 0.0 if since_s is None else self._worked_s


DECAY = 0.6  # of the past with each look; a heartbeat looks twice a second


class LoadFraction:
    """Measure which part of the time a thread works; another thread reads it. All times are monotonic seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worked_s = 0.0  # since the last look
        self._since_s: float | None = None  # of the work under way, or since the last look at it
        self._looked_s: float | None = None
        self._fraction = 0.0

    def begin_work(self, now_s: float) -> None:
        """Begin a piece of work."""
        with self._lock:
            self._count(now_s)
            self._since_s = now_s

    def end_work(self, now_s: float) -> None:
        """End the piece of work under way, if there is one."""
        with self._lock:
            self._count(now_s)
            self._since_s = None

    def mark_idle(self) -> None:
        """Leave the work under way out: no request waits for it."""
        with self._lock:
            self._since_s = None

    def read(self, now_s: float) -> float:
        """Return the part of the time, 0 ... 1, the last second weighing most."""
        with self._lock:
            self._count(now_s)
            if self._looked_s is not None and now_s > self._looked_s:
                part = min(1.0, self._worked_s / (now_s - self._looked_s))
                self._fraction = DECAY * self._fraction + (1.0 - DECAY) * part
            self._looked_s, self._worked_s = now_s, 0.0
            return self._fraction

    def _count(self, now_s: float) -> None:
        if self._since_s is not None:
            self._worked_s += now_s - self._since_s
            self._since_s = now_s

"""Beat for a worker process: a thread that renews its leases, reports its progress, and runs its regular tasks.

After HUNG_S without progress it ends the process, so that it is started again.
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
from workers.recovery import Recovery
from workers.tracing.recorder import Recorder

log = logging.getLogger(__name__)
HUNG_S = 180.0  # one step or one pass of a drafter; far beyond a long prompt's chunk on a slow machine
LONGEST_LOOK_S = 12.0  # longest time between two looks that counts as work; a heartbeat may wait for Redis twice
STDERR = 2  # the process's own


class HeartbeatTask(Protocol):
    """Regular work of a process, in its heartbeat's thread. A failed task is repeated at the next beat."""

    def beat(self) -> None:
        """Do what is due, four times a lease. Raises StoreUnavailable."""
        ...

    def close(self) -> None:
        """Write what must not be lost: the process ends. Raises StoreUnavailable."""
        return None


class Heartbeat(threading.Thread):
    """The heartbeat of one worker. `owner`: its random identity. `info`: facts that it publishes."""

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
        self._recovery = Recovery(deployment)
        self._mailboxes: set[str] = set()
        self._mailboxes_lock = threading.Lock()
        self._busy_since_s: float | None = None  # monotonic
        self._interval_s = deployment.settings.lease_s / 4
        self._hang_watch = HangWatch(LONGEST_LOOK_S)
        self._load_fraction = LoadFraction()
        self._stopping = threading.Event()

    def begin(self, tasks: Sequence[HeartbeatTask] = ()) -> None:
        """Take the node's name, waiting for a dead namesake's lease to expire, then beat."""
        self._tasks = tuple(tasks)
        while not self._renew():
            log.info("%s is still held by another process; waiting", self.node)
            time.sleep(self._interval_s)
        self.start()

    def end(self) -> None:
        self._stopping.set()
        if self.is_alive():
            self.join(timeout=self._deployment.settings.lease_s)  # a beat under way would take the name again
        try:
            for task in self._tasks:
                task.close()
            self._record()
            self._deployment.nodes.retire(self.kind, self.node, self.owner)
        except StoreUnavailable as error:
            log.warning("could not release the name: %s", error)
        self.recorder.close()

    def begin_work(self) -> None:
        self._busy_since_s = now_s = time.monotonic()
        self._load_fraction.begin_work(now_s)
        self.recorder.begin_work()

    def end_work(self) -> None:
        now_s, since_s = time.monotonic(), self._busy_since_s
        self._busy_since_s = None
        self._load_fraction.end_work(now_s)
        self.recorder.end_work()
        if since_s is not None:
            self._deployment.counters.count(BUSY, self.kind, by=now_s - since_s)

    def mark_idle(self) -> None:
        """Leave the work under way out of the load: it is optional."""
        self._load_fraction.mark_idle()

    def working_on(self, request_ids: Iterable[str]) -> None:
        self.recorder.working_on(request_ids)

    def attend(self, mailbox: str) -> bool:
        """Renew this mailbox's lease from now on; False if this process does so already."""
        with self._mailboxes_lock:
            if mailbox in self._mailboxes:
                return False
            self._mailboxes.add(mailbox)
            return True

    def stop_attending(self, mailbox: str) -> None:
        with self._mailboxes_lock:
            self._mailboxes.discard(mailbox)

    def attends(self, mailbox: str) -> bool:
        return mailbox in self._mailboxes

    def run(self) -> None:
        while not self._stopping.wait(self._interval_s):
            self._end_if_hung()
            try:
                if not self._renew():
                    log.error("another process has the name %s now; ending this one", self.node)
                    os.kill(os.getpid(), signal.SIGTERM)
                    return
                for beat in (*(task.beat for task in self._tasks), self._record, self._recovery.beat):
                    self._try(beat)
            except StoreUnavailable as error:
                log.warning("the heartbeat failed: %s", error)
            except Exception:  # the next one may succeed
                log.exception("a heartbeat failed")

    def _try(self, beat: Callable[[], None]) -> None:
        """Let an error end neither the heartbeat nor what comes after. Raises StoreUnavailable."""
        try:
            beat()
        except StoreUnavailable:
            raise
        except Exception:
            log.exception("a part of the heartbeat failed")

    def _renew(self) -> bool:
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
            log.critical("%s has worked on one batch for %.0f s; ending this process", self.node, HUNG_S)
            faulthandler.dump_traceback(STDERR)  # Celery has replaced `sys.stderr` by a log
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
    def __init__(self, longest_look_s: float) -> None:
        """Count at most `longest_look_s` between two looks: in the rest the whole process was frozen."""
        self._longest_look_s = longest_look_s
        self._since_s: float | None = None  # when the work began that was under way at the last look
        self._looked_s = 0.0
        self._worked_s = 0.0

    def look(self, since_s: float | None, now_s: float) -> float:
        """Return the seconds of the work that began at `since_s` (monotonic; None: none is under way)."""
        if since_s != self._since_s:
            self._since_s, self._worked_s, self._looked_s = since_s, 0.0, now_s if since_s is None else since_s
        self._worked_s += min(self._longest_look_s, now_s - self._looked_s)
        self._looked_s = now_s
        return 0.0 if since_s is None else self._worked_s


DECAY = 0.6  # of the past with each look; a heartbeat looks twice a second


class LoadFraction:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worked_s = 0.0  # since the last look
        self._since_s: float | None = None  # of the work under way, or since the last look at it
        self._looked_s: float | None = None
        self._fraction = 0.0

    def begin_work(self, now_s: float) -> None:
        with self._lock:
            self._count(now_s)
            self._since_s = now_s

    def end_work(self, now_s: float) -> None:
        with self._lock:
            self._count(now_s)
            self._since_s = None

    def mark_idle(self) -> None:
        with self._lock:
            self._since_s = None

    def read(self, now_s: float) -> float:
        """Return the part of the time, 0 to 1, in which the last second weighs most."""
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

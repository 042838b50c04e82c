"""A process's heartbeat: a thread that keeps its leases, says how it fares, and sweeps up after others.

A frozen process freezes its heartbeat too, so its leases run out and others take over. Progress is reported apart from
being alive: a process that hangs in one step still has a heartbeat, but its progress stands still. When one piece of
work has taken longer than any can, the heartbeat ends the process, so that it is started again.
"""

import faulthandler
import logging
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from app.errors import StoreUnavailable
from app.metrics import BUSY
from app.telemetry.verifier_metrics import RequestProgress
from workers.deployment import Deployment
from workers.tracing.spans import Spans
from workers.tracing.telemetry import Telemetry
from workers.tracing.tracing import Tracing

log = logging.getLogger(__name__)
SWEEP_EVERY_S = 1.0
HUNG_S = 180.0  # one step or one batch of drafts; far beyond a long prompt's chunk on a slow machine


class Heartbeat(threading.Thread):
    """Beats for one node. `owner` is this process's identity: random, so that nobody can come back as it."""

    def __init__(
        self,
        deployment: Deployment,
        kind: str,
        node: str,
        *,
        owner: str | None = None,
        info: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        super().__init__(name=f"heartbeat-{node}", daemon=True)
        self.owner = owner or uuid.uuid4().hex
        self.kind = kind
        self.node = node
        self.on_beat: list[Callable[[], None]] = []  # what else to refresh, e.g. the policy
        self.on_end: list[Callable[[], None]] = []  # what else to write before it is gone
        self.told: Callable[[], Mapping[str, RequestProgress]] = dict  # how far requests are, for their timelines
        self._deployment = deployment
        self._info = info
        self._mailboxes: set[str] = set()
        self._mailboxes_lock = threading.Lock()
        self._busy_since_s: float | None = None  # monotonic
        self._load_fraction = LoadFraction()
        folder = deployment.settings.spans
        self._spans = None if folder is None else Spans(folder, kind, node)
        self._tracing = Tracing(deployment.traces, kind, node)
        self._telemetry = None if deployment.settings.otlp_url is None else Telemetry(deployment.settings, kind, node)
        if self._telemetry is not None:
            deployment.noted = self._telemetry.note
        self._busy_s = 0.0  # since that was counted last
        deployment.counters.sources.append(self._count_busy)
        self._stopping = threading.Event()
        self._swept_s = 0.0

    def begin(self) -> None:
        """Take the node's name, waiting for a dead namesake's lease to run out, then beat on."""
        while not self._beat():
            log.info("%s is still held by another process; waiting", self.node)
            time.sleep(self._deployment.settings.lease_s / 4)
        self.start()

    def end(self) -> None:
        """Stop beating and give the name up at once."""
        self._stopping.set()
        if self.is_alive():
            self.join(timeout=self._deployment.settings.lease_s)  # a beat under way would take the name again
        try:
            for write in (*self.on_end, self._trace):
                write()
            self._deployment.nodes.retire(self.kind, self.node, self.owner)
        except StoreUnavailable as error:
            log.warning("could not retire: %s", error)
        if self._spans is not None:
            self._spans.flush()
        if self._telemetry is not None:
            self._telemetry.close()

    def busy(self, is_busy: bool) -> None:
        """Progress: the process begins a piece of work, or has ended one."""
        now_s, since_s = time.monotonic(), self._busy_since_s
        if since_s is not None and not is_busy:
            self._busy_s += now_s - since_s
        self._busy_since_s = now_s if is_busy else None
        self._load_fraction.toggle(is_busy, now_s)
        self._tracing.toggle(is_busy)
        if self._telemetry is not None:
            self._telemetry.toggle(is_busy)
        if self._spans is not None:
            self._spans.toggle(is_busy)

    def mark_idle(self) -> None:
        """The piece of work under way is optional: it says nothing of how busy the process is."""
        self._load_fraction.mark_idle()

    def works_on(self, sequences: int) -> None:
        """How many sequences the piece of work under way is about; for the timeline only."""
        if self._spans is not None:
            self._spans.sequences = sequences

    def about(self, request_ids: Iterable[str]) -> None:
        """The requests that the piece of work under way is for."""
        if self._telemetry is None:
            self._tracing.about(request_ids)
        else:
            ids = [*request_ids]
            self._tracing.about(ids)
            self._telemetry.about(ids)

    def attend(self, mailbox: str) -> bool:
        """Renew this mailbox's lease from now on; False if this process does so already."""
        with self._mailboxes_lock:
            if mailbox in self._mailboxes:
                return False
            self._mailboxes.add(mailbox)
            return True

    def stop_attending(self, mailbox: str) -> None:
        """No more renewals."""
        with self._mailboxes_lock:
            self._mailboxes.discard(mailbox)

    def attends(self, mailbox: str) -> bool:
        """Whether a thread of this process attends the mailbox."""
        return mailbox in self._mailboxes

    def run(self) -> None:
        while not self._stopping.wait(self._deployment.settings.lease_s / 4):
            self._end_if_hung()
            try:
                if not self._beat():
                    log.error("another process took over as %s; leaving", self.node)
                    os.kill(os.getpid(), signal.SIGTERM)
                    return
                self._look_around()
            except StoreUnavailable as error:
                log.warning("no heartbeat: %s", error)
            except Exception:  # the heartbeat must outlive whatever a refresh runs into
                log.exception("a heartbeat failed")

    def _beat(self) -> bool:
        progress_s = time.time() - self._busy_for_s()
        info = {**self._info(), "pid": os.getpid(), "busy": round(self._load_fraction.read(time.monotonic()), 3)}
        alive = self._deployment.nodes.beat(self.kind, self.node, self.owner, progress_s=progress_s, info=info)
        for mailbox in list(self._mailboxes):
            self._deployment.mailboxes.renew(mailbox, self.owner)
        return alive

    def _end_if_hung(self) -> None:
        if self._busy_for_s() > HUNG_S:
            log.critical("%s has been at one piece of work for %.0f s; ending it", self.node, HUNG_S)
            faulthandler.dump_traceback()
            os.kill(os.getpid(), signal.SIGKILL)

    def _busy_for_s(self) -> float:
        since_s = self._busy_since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    def _count_busy(self) -> None:
        busy_s, self._busy_s = self._busy_s, 0.0
        if busy_s:
            self._deployment.counters.count(BUSY, self.kind, by=busy_s)

    def _trace(self) -> None:
        told = self.told()
        if self._telemetry is not None:
            self._telemetry.flush(told)
        self._tracing.flush(told)

    def _look_around(self) -> None:
        if self._spans is not None:
            self._spans.flush()
        for refresh in self.on_beat:
            refresh()
        self._trace()
        now = time.monotonic()
        if now - self._swept_s >= SWEEP_EVERY_S:
            self._swept_s = now
            if self._deployment.nodes.try_lock("sweep", SWEEP_EVERY_S * 0.9):
                self._deployment.sweep()


DECAY = 0.6  # of the past with each look; a heartbeat looks twice a second


class LoadFraction:
    """One thread tells when it begins and ends a piece of work, another looks. All times are monotonic seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worked_s = 0.0  # since the last look
        self._since_s: float | None = None  # of the work under way, or since the last look at it
        self._looked_s: float | None = None
        self._fraction = 0.0

    def toggle(self, is_busy: bool, now_s: float) -> None:
        """A piece of work begins, or has ended."""
        with self._lock:
            self._count(now_s)
            self._since_s = now_s if is_busy else None

    def mark_idle(self) -> None:
        """The work under way is none that anybody waits for: it does not count."""
        with self._lock:
            self._since_s = None

    def read(self, now_s: float) -> float:
        """The part of the time, 0 ... 1, the last second weighing most."""
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

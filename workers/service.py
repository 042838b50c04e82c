"""Bundle what a role gives to its worker process: heartbeat, doorbells, regular tasks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Thread

from workers.heartbeat import Heartbeat, HeartbeatTask

DRAFTER_THREAD_ENDS_S = 5.0  # a pass may still be under way


@dataclass(frozen=True, slots=True)
class RoleService:
    """A role's service, as its worker process runs it."""

    heartbeat: Heartbeat
    doorbells: Mapping[str, Callable[[], None]]  # by mailbox, what serves it until it is idle
    tasks: Sequence[HeartbeatTask] = ()
    drafter_thread: Thread | None = None  # serves one mailbox all the time, and ends with Celery's worker

    def begin(self) -> None:
        self.heartbeat.begin(self.tasks)

    def ring(self, mailbox: str) -> None:
        if mailbox in self.doorbells:
            self.doorbells[mailbox]()

    def end(self) -> None:
        self.heartbeat.end()
        if self.drafter_thread is not None:
            self.drafter_thread.join(DRAFTER_THREAD_ENDS_S)

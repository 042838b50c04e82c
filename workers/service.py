"""Bundle what a role gives to its worker process: heartbeat, doorbells, regular tasks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Thread

from workers.heartbeat import Heartbeat, HeartbeatTask

DRAFTER_THREAD_ENDS_S = 5.0  # a batch of drafts may still be under way


@dataclass(frozen=True, slots=True)
class RoleService:
    """A role's service, as its worker process runs it.

    `doorbells`: by mailbox, the function that serves it until it is idle. `drafter_thread`: serves one mailbox all
    the time, and ends with Celery's worker.
    """

    heartbeat: Heartbeat
    doorbells: Mapping[str, Callable[[], None]]
    tasks: Sequence[HeartbeatTask] = ()
    drafter_thread: Thread | None = None

    def begin(self) -> None:
        self.heartbeat.begin(self.tasks)

    def ring(self, mailbox: str) -> None:
        """Serve a mailbox whose doorbell rang; ignore an unknown one."""
        if mailbox in self.doorbells:
            self.doorbells[mailbox]()

    def end(self) -> None:
        self.heartbeat.end()
        if self.drafter_thread is not None:
            self.drafter_thread.join(DRAFTER_THREAD_ENDS_S)

"""Bundle what a role hands to its worker process: heartbeat, doorbells, regular tasks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Thread

from workers.heartbeat import Heartbeat, HeartbeatTask

DRAFTER_THREAD_ENDS_S = 5.0  # a batch of drafts may still be under way


@dataclass(frozen=True, slots=True)
class RoleService:
    """A role's service, as its worker process runs it.

    `doorbells`: by mailbox, the function that its doorbell calls; it returns when the mailbox has been idle for a
    while. `tasks` of the heartbeat. `drafter_thread`: serves one mailbox all the time, and ends when Celery's worker
    does.
    """

    heartbeat: Heartbeat
    doorbells: Mapping[str, Callable[[], None]]
    tasks: Sequence[HeartbeatTask] = ()
    drafter_thread: Thread | None = None

    def begin(self) -> None:
        """Take the node's name, and start the heartbeat."""
        self.heartbeat.begin(self.tasks)

    def ring(self, mailbox: str) -> None:
        """Serve a mailbox whose doorbell rang; ignore one that is not served here."""
        if mailbox in self.doorbells:
            self.doorbells[mailbox]()

    def end(self) -> None:
        """Stop serving, and free the node's name at once."""
        self.heartbeat.end()
        if self.drafter_thread is not None:
            self.drafter_thread.join(DRAFTER_THREAD_ENDS_S)

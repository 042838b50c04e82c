"""What a worker process is there for: the heartbeat of its node, and what it does when a mailbox's doorbell rings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Thread

from workers.heartbeat import Heartbeat

DRAFTER_THREAD_ENDS_S = 5.0  # a batch of drafts may still be under way


@dataclass(frozen=True, slots=True)
class RoleService:
    """`bells`: by mailbox, what its doorbell sets off; it returns when the mailbox has been idle for a while.

    `aside`: a thread that serves one of them all the time, and ends when Celery's worker does.
    """

    heartbeat: Heartbeat
    doorbells: Mapping[str, Callable[[], None]]
    drafter_thread: Thread | None = None

    def ring(self, mailbox: str) -> None:
        """The doorbell of `mailbox` rang. One that is not served here is somebody's mistake, and nobody's loss."""
        if mailbox in self.doorbells:
            self.doorbells[mailbox]()

    def end(self) -> None:
        """Nothing more is served: the node's name is free at once."""
        self.heartbeat.end()
        if self.drafter_thread is not None:
            self.drafter_thread.join(DRAFTER_THREAD_ENDS_S)

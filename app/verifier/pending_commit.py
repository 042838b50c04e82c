"""Send a verifier's commit, and read its outcomes later, while the verifier goes on."""

from collections.abc import Callable

from app.messages import Event
from app.state import Sequence
from app.store.protocol import Committed, Outcome, Requests


class PendingCommit:
    """Hold at most one commit: `send` it, and read its outcomes later by `settle`."""

    def __init__(self, owner: str, mailbox: str, store: Requests) -> None:
        """Commit to `store` as `owner`, whose mail comes to `mailbox`."""
        self._owner, self._mailbox, self._store = owner, mailbox, store
        self._sequences: list[Sequence] = []
        self._events: list[tuple[str, Event]] = []
        self._reply: Callable[[], Committed] | None = None
        self._committed: Committed | None = None  # once the reply has been read

    def send(self, events: list[tuple[Sequence, Event]]) -> None:
        """Commit each event to its sequence's request.

        Raises StoreUnavailable; then nothing is pending.
        """
        self._sequences = [sequence for sequence, _ in events]
        self._events = [(sequence.record.id, event) for sequence, event in events]
        if events:
            self._reply = self._store.commit_later(self._owner, self._events, self._mailbox)

    def settle(self) -> list[tuple[Sequence, Event, Outcome]]:
        """Return the outcomes; nothing if nothing is under way.

        Raises StoreUnavailable; then the same is committed again at the next call, which counts
        once.
        """
        if self._reply is None:
            return []
        outcomes = self._read(self._reply).outcomes
        self._reply = self._committed = None
        events = [event for _, event in self._events]
        return list(zip(self._sequences, events, outcomes, strict=True))

    def mail(self) -> int | None:
        """Return the items that waited in the mailbox at the commit; None where none is known to have been made."""
        if self._reply is None:
            return None
        try:
            return self._read(self._reply).waiting
        except Exception:  # `settle` meets it, too
            return None

    def _read(self, reply: Callable[[], Committed]) -> Committed:
        if self._committed is None:
            try:
                self._committed = reply()
            except Exception:
                self._reply = lambda: self._store.commit_later(self._owner, self._events, self._mailbox)()
                raise
        return self._committed

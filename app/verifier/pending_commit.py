"""Send a verifier's commit, and read its outcomes later, while the verifier goes on."""

from collections.abc import Callable

from app.messages import Event
from app.state import Sequence
from app.store.protocol import Outcome, Requests


class PendingCommit:
    """Hold at most one commit: `send` it, and read its outcomes later by `settle`."""

    def __init__(self, owner: str, store: Requests) -> None:
        """Commit to `store` as `owner`."""
        self._owner, self._store = owner, store
        self._sequences: list[Sequence] = []
        self._events: list[tuple[str, Event]] = []
        self._outcomes: Callable[[], list[Outcome]] | None = None

    def send(self, events: list[tuple[Sequence, Event]]) -> None:
        """Commit each event to its sequence's request.

        Raises StoreUnavailable; then nothing is pending.
        """
        self._sequences = [sequence for sequence, _ in events]
        self._events = [(sequence.record.id, event) for sequence, event in events]
        self._outcomes = self._store.commit_later(self._owner, self._events)

    def settle(self) -> list[tuple[Sequence, Event, Outcome]]:
        """Return the outcomes; nothing if nothing is under way.

        Raises StoreUnavailable; then the same is committed again at the next call, which counts
        once.
        """
        if self._outcomes is None:
            return []
        try:
            outcomes = self._outcomes()
        except Exception:
            self._outcomes = lambda: self._store.commit(self._owner, self._events)
            raise
        self._outcomes = None
        events = [event for _, event in self._events]
        return list(zip(self._sequences, events, outcomes, strict=True))

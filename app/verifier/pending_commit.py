"""Send a verifier's commit, and read its outcomes later."""

from contextlib import suppress

from app.errors import StoreUnavailable
from app.messages import Event
from app.state import Sequence
from app.store.protocol import Committed, Outcome, Requests, SentCommit


class PendingCommit:
    """Hold at most one commit."""

    def __init__(self, owner: str, mailbox: str, store: Requests) -> None:
        self._owner, self._mailbox, self._store = owner, mailbox, store
        self._sequences: list[Sequence] = []
        self._events: list[tuple[str, Event]] = []  # none: nothing is pending
        self._ending: set[str] = set()
        self._sent: SentCommit | None = None  # None: still to be sent, or heard of
        self._heard: Committed | None = None  # what `has_mail` has read for `settle`
        self._waiting = 0  # items in the mailbox at the last commit that was heard of

    @property
    def ends_any(self) -> bool:
        """Tell whether the pending commit ends a request, whose memory is kept until then."""
        return bool(self._ending)

    def ends(self, request_id: str) -> bool:
        return request_id in self._ending

    @property
    def is_ready(self) -> bool:
        """Tell whether a commit is pending that `settle` need not wait for."""
        return bool(self._events) and (self._sent is None or self._sent.is_ready())

    def send(self, events: list[tuple[Sequence, Event]]) -> None:
        """Commit each event to its request, when nothing is pending.

        Raises StoreUnavailable; `settle` then sends it again, which counts once.
        """
        self._sequences = [sequence for sequence, _ in events]
        self._events = [(sequence.record.id, event) for sequence, event in events]
        self._ending = {request_id for request_id, event in self._events if event.finish_reason is not None}
        if events:
            self._sent = self._store.commit_later(self._owner, self._events, self._mailbox)

    def settle(self) -> list[tuple[Sequence, Event, Outcome]]:
        """Return the outcomes of the pending commit.

        Raises StoreUnavailable; the next call then sends it again, which counts once.
        """
        if not self._events:
            return []
        outcomes = self._hear().outcomes
        events, self._events, self._heard = [event for _, event in self._events], [], None
        self._ending.clear()
        return list(zip(self._sequences, events, outcomes, strict=True))

    def has_mail(self) -> bool:
        """Tell whether mail waited at the last commit; True where none is pending."""
        if self._sent is not None and self._sent.is_ready():
            with suppress(StoreUnavailable):  # `settle` meets it, too
                self._hear()
        return not self._events or self._waiting > 0

    def _hear(self) -> Committed:
        if self._heard is None:
            sent, self._sent = self._sent, None
            sent = sent or self._store.commit_later(self._owner, self._events, self._mailbox)
            self._heard = sent.read()
            self._waiting = self._heard.waiting
        return self._heard

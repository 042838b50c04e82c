"""Keep how many tokens of each sequence the drafters of each node have read.

Jobs that are sent and trees that come go in; counts of tokens come out. Prices nothing, and sends nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from app.estimates.draft_costs import FEW_UNREAD
from app.messages import TreeMessage


@dataclass(slots=True)
class _Place:
    """One sequence at one node: the tokens read there, and those sent."""

    read: int = 0
    sent: int = 0
    until_s: float = 0.0  # monotonic: what was sent is taken for read from then on
    drafters: Mapping[str, str] = field(default_factory=dict)  # that were asked, with the mailbox of each
    is_alone: bool = False  # the node fuses by itself, so that any answer is its own

    def update(self, now_s: float) -> None:
        """Take what was sent for read where there was time enough: the node may be dead, or its model too short."""
        if now_s >= self.until_s:
            self.read = self.sent


class ReadTokens:
    """The tokens that drafters have read, by request and mailbox.

    A node has read a sequence up to where an answer of its drafters begins, and no further: answers may come
    rounds late, or not at all.
    """

    def __init__(self) -> None:
        self._places: dict[str, dict[str, _Place]] = {}
        self._reading: dict[str, dict[str, int]] = {}  # by mailbox and request: tokens of long readings under way

    def unread(self, request_id: str, length: int, mailbox: str, now_s: float) -> int:
        """Return how many of its first `length` tokens the drafters there have not read."""
        place = self._places.get(request_id, {}).get(mailbox)
        if place is None:
            return length
        if now_s >= place.until_s:
            place.read = place.sent
        return length - place.read

    def reading(self, mailbox: str, now_s: float) -> dict[str, int]:
        """Return, by request, the tokens sent there that drafters read before all else; a few do not count."""
        under_way = self._reading.get(mailbox)
        if not under_way:
            return {}
        for request_id in [*under_way]:
            place = self._places[request_id][mailbox]
            place.update(now_s)
            self._note(request_id, mailbox, place)
        return dict(under_way)

    def is_awaited(self, request_id: str, mailboxes: Iterable[str], now_s: float) -> bool:
        """Tell whether one of the nodes still works at a job of the sequence."""
        known = self._places.get(request_id, {})
        places = [known[mailbox] for mailbox in mailboxes if mailbox in known]
        for place in places:
            place.update(now_s)
        return any(place.read < place.sent for place in places)

    def record_sent(
        self, request_id: str, length: int, homes: Mapping[str, str], fuser: str, now_s: float, by_s: float
    ) -> None:
        """Record that jobs brought these drafters, at their mailboxes `homes`, up to `length` tokens.

        By `by_s`, monotonic, they have read these if ever, unless an earlier job of the sequence is under way.
        """
        places = self._places.get(request_id)
        if places is None:
            places = self._places[request_id] = {}
        for mailbox in set(homes.values()):
            place = places.get(mailbox)
            if place is None:
                place = places[mailbox] = _Place()
            elif now_s >= place.until_s:
                place.read = place.sent
            if place.read == place.sent:
                place.until_s = by_s
            place.sent, place.drafters, place.is_alone = length, homes, mailbox == fuser
            if length - place.read > FEW_UNREAD or self._reading:
                self._note(request_id, mailbox, place)

    def record_answer(self, message: TreeMessage) -> None:
        """Record what an answer shows, however late: its drafters have read what it follows."""
        places = self._places.get(message.request_id)
        for mailbox, place in places.items() if places else ():
            if not place.read < message.base <= place.sent:
                continue
            if message.skipped and place.is_alone:
                place.sent = place.read if message.base == place.sent else place.sent  # nor does it read now
            elif place.is_alone or _is_from(mailbox, place, message):
                place.read = message.base
            if self._reading:
                self._note(message.request_id, mailbox, place)

    def remove(self, request_id: str) -> None:
        """Remove an ended request."""
        for mailbox, place in self._places.pop(request_id, {}).items():
            place.read = place.sent
            self._note(request_id, mailbox, place)

    def _note(self, request_id: str, mailbox: str, place: _Place) -> None:
        unread = place.sent - place.read
        if unread > FEW_UNREAD:
            self._reading.setdefault(mailbox, {})[request_id] = unread
        elif mailbox in self._reading:
            self._reading[mailbox].pop(request_id, None)
            if not self._reading[mailbox]:
                del self._reading[mailbox]


def _is_from(mailbox: str, place: _Place, message: TreeMessage) -> bool:
    """Tell whether a fused answer has drafts of that node's."""
    return any(place.drafters.get(name) == mailbox for name in message.confidence)

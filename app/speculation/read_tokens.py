"""Keep how many tokens of each sequence the drafters of each node have read.

Jobs that are sent and trees that come go in; counts of tokens come out. Prices nothing, and sends nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from app.messages import TreeMessage
from app.speculation.draft_costs import FEW_UNREAD


@dataclass(slots=True)
class _Place:
    """One sequence at one node: the tokens read there, and those sent."""

    read: int = 0
    first: int = 0  # base of the first job under way
    sent: int = 0  # base of the last; as `read` where none is under way
    until_s: float = 0.0  # monotonic: an answer comes by then, if ever
    is_silent: bool = False  # none came: what is sent is taken for read until one does
    drafters: Mapping[str, str] = field(default_factory=dict)  # that were asked, with the mailbox of each
    is_alone: bool = False  # the node fuses by itself, so that any answer is its own

    def update(self, now_s: float) -> None:
        """Give up the jobs under way where there was time enough: the node may be dead, or its model too short."""
        if self.sent > self.read and now_s >= self.until_s:
            self.read, self.is_silent = self.sent, True


class ReadTokens:
    """The tokens that drafters have read, by request and mailbox.

    A node has read a sequence up to where an answer of its drafters begins, and no further: answers may come
    rounds late, or not at all.
    """

    def __init__(self) -> None:
        self._places: dict[str, dict[str, _Place]] = {}
        self._reading: dict[str, dict[str, int]] = {}  # by mailbox and request: tokens of long readings under way

    def unread(self, request_id: str, length: int, mailbox: str, now_s: float) -> int:
        """Return how many of its first `length` tokens the drafters there have not read.

        None where they are not expected to answer.
        """
        place = self._places.get(request_id, {}).get(mailbox)
        if place is None:
            return length
        place.update(now_s)
        return 0 if place.is_silent else length - place.read

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

    def is_awaited(self, request_id: str, mailbox: str, now_s: float) -> bool:
        """Tell whether the node still works at a job of the sequence."""
        place = self._places.get(request_id, {}).get(mailbox)
        if place is None:
            return False
        place.update(now_s)
        return place.read < place.sent

    def record_sent(
        self, request_id: str, length: int, homes: Mapping[str, str], fuser: str, now_s: float, by_s: float
    ) -> None:
        """Record that jobs brought these drafters, at their mailboxes `homes`, up to `length` tokens.

        They answer by `by_s`, monotonic, if ever, unless an earlier job of the sequence is under way. A node that is
        the `fuser` answers alone, and for its drafters even where they had no guess.
        """
        places = self._places.get(request_id)
        if places is None:
            places = self._places[request_id] = {}
        for mailbox in set(homes.values()):
            place = places.get(mailbox)
            if place is None:
                place = places[mailbox] = _Place()
            place.update(now_s)
            if place.read >= place.sent:
                place.first, place.until_s = length, by_s
            place.sent, place.drafters, place.is_alone = length, homes, mailbox == fuser
            if length - place.read > FEW_UNREAD or self._reading:
                self._note(request_id, mailbox, place)

    def record_answer(self, message: TreeMessage) -> None:
        """Record what an answer shows, however late: its drafters have read what it follows."""
        places = self._places.get(message.request_id)
        for mailbox, place in places.items() if places else ():
            if not max(place.first, place.read) <= message.base <= place.sent:
                continue
            if message.skipped and place.is_alone:
                place.sent = place.read if message.base == place.sent else place.sent  # nor does it read now
            elif _is_from(mailbox, place, message):
                place.read, place.is_silent = message.base, False
            if self._reading:
                self._note(message.request_id, mailbox, place)

    def remove(self, request_id: str) -> None:
        """Remove an ended request."""
        for mailbox, place in self._places.pop(request_id, {}).items():
            place.read = place.sent
            self._note(request_id, mailbox, place)

    def _note(self, request_id: str, mailbox: str, place: _Place) -> None:
        unread = 0 if place.is_silent else place.sent - place.read
        if unread > FEW_UNREAD:
            self._reading.setdefault(mailbox, {})[request_id] = unread
        elif mailbox in self._reading:
            self._reading[mailbox].pop(request_id, None)
            if not self._reading[mailbox]:
                del self._reading[mailbox]


def _is_from(mailbox: str, place: _Place, message: TreeMessage) -> bool:
    """Tell whether an answer has drafts of that node's, or can have: it fuses by itself, and they had no guess."""
    if not message.confidence:
        return place.is_alone
    return any(place.drafters.get(name) == mailbox for name in message.confidence) or (
        place.is_alone and message.confidence.keys().isdisjoint(place.drafters)
    )

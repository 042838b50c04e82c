"""Deliver committed events to the readers of this process through one subscription and one thread.

Each commit publishes its events (`commit.lua`, `end.lua`). A message is a hint: a reader begins with the stored events,
drops known ones, and reads the store if one is missing. Every CHECK_S, and after each new connection, one call finds
the readers that have missed something. A subscription without an answer to a ping is reopened.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any

import msgspec
import redis

from app.errors import MessageError, StoreUnavailable
from app.messages import Event
from app.store.connect import Script, translating
from app.store.keys import Keys
from app.store.protocol import Requests, past

log = logging.getLogger(__name__)

CHECK_S = 1.0  # between two checks for missed events; a reader that got an event is left out of the next one
LINGER_S = 0.2  # that the subscription may outlive the last reader
RETRY_S = 0.2  # after an error
BATCH = 1024  # readers that one call checks, so that none holds Redis up for long
QUEUED = 256  # events that wait for a slow reader; beyond them it reads the store
_MESSAGE = msgspec.json.Decoder(list[tuple[str, msgspec.Raw]])

Found = tuple[int, Event]  # the request's place among the reader's, and an event of it
Take = Callable[[int, Event], bool]  # takes an event at once; False: it has not, and the reader's thread must


class EventFeed:
    """Thread-safe."""

    def __init__(self, client: redis.Redis, namespace: str, requests: Requests) -> None:
        self._client, self._requests = client, requests
        self._keys = Keys(namespace)
        self._behind = Script(client, "behind")
        self._lock = threading.Lock()
        self._readers: dict[str, list[tuple[int, Reader]]] = {}  # by request
        self._is_running = False
        self._thread: threading.Thread | None = None  # the last one
        self._error: StoreUnavailable | None = None

    @property
    def error(self) -> StoreUnavailable | None:
        return self._error

    @contextmanager
    def reading(self, request_ids: Sequence[str], offset: int = 0) -> Iterator["Reader"]:
        """Deliver events after `offset` generated tokens within the block."""
        reader = Reader(self, self._requests, request_ids, offset)
        with self._lock:
            for place, request_id in enumerate(request_ids):
                self._readers.setdefault(request_id, []).append((place, reader))
        try:
            with self._lock:
                if not self._is_running:
                    self._thread, self._error = threading.Thread(target=self._run, name="events", daemon=True), None
                    self._thread.start()
                    self._is_running = True
            yield reader
        finally:
            with self._lock:
                for request_id in request_ids:
                    left = [pair for pair in self._readers[request_id] if pair[1] is not reader]
                    if left:
                        self._readers[request_id] = left
                    else:
                        del self._readers[request_id]

    def close(self) -> None:
        """Wait for the thread to end; readers must be gone."""
        if (thread := self._thread) is not None:
            thread.join()

    def _run(self) -> None:
        subscription: Any = None
        checked_s = -CHECK_S
        is_asked = False  # a ping has been sent, and nothing has come since
        while self._goes_on():
            try:
                with translating():
                    is_due = time.monotonic() - checked_s >= CHECK_S
                    if subscription is not None and is_due and is_asked:
                        subscription.close()
                        subscription = None
                    if subscription is None:
                        subscription, is_asked = self._client.pubsub(), False
                        subscription.subscribe(self._keys.committed)
                    if is_due:
                        self._check(only_silent=True)
                        subscription.ping()
                        checked_s, is_asked = time.monotonic(), True
                    wait_s = min(LINGER_S, checked_s + CHECK_S - time.monotonic())
                    message = subscription.get_message(timeout=max(0.0, wait_s))
                    is_asked = is_asked and message is None
                    self._take(message)
                self._error = None
            except StoreUnavailable as error:
                self._error = error
                time.sleep(RETRY_S)
            except Exception:  # readers still get events by the check
                log.exception("cannot hear of commits")
                time.sleep(RETRY_S)
        if subscription is not None:
            subscription.close()

    def _goes_on(self) -> bool:
        with self._lock:
            self._is_running = bool(self._readers)
            return self._is_running

    def _take(self, message: Mapping[str, Any] | None) -> None:
        if message is None:
            return
        if message["type"] == "subscribe":
            self._check(only_silent=False)
        elif message["type"] == "message":
            for request_id, text in _MESSAGE.decode(message["data"]):
                if readers := self._readers.get(request_id):
                    self._hand_on(readers, text)

    def _hand_on(self, readers: Sequence[tuple[int, "Reader"]], text: msgspec.Raw) -> None:
        try:
            event = Event.read(bytes(text))
        except MessageError:  # another version may have sent it; the reader reads the store
            event = None
        for place, reader in readers:
            reader.put(place, event)

    def _check(self, *, only_silent: bool) -> None:
        """`only_silent`: check readers without events since the last check."""
        with self._lock:
            pairs = [(request_id, *pair) for request_id, own in self._readers.items() for pair in own]
        waiting = [one for one in pairs if one[2].was_silent(one[1]) or not only_silent]
        for first in range(0, len(waiting), BATCH):
            some = waiting[first : first + BATCH]
            keys = [self._keys.request(request_id) for request_id, _, _ in some]
            for i in self._behind(keys, [reader.offset(place) for _, place, reader in some]):
                _, place, reader = some[i]
                reader.put(place, None)


class Reader:
    """For one thread, except for the feed's calls."""

    def __init__(self, feed: EventFeed, requests: Requests, request_ids: Sequence[str], offset: int) -> None:
        self._feed, self._requests, self._ids = feed, requests, request_ids
        self._offsets = [offset] * len(request_ids)
        self._queue: SimpleQueue[tuple[int, Event | None]] = SimpleQueue()
        self._must_look = set(range(len(request_ids)))  # places whose stored events must be read
        self._heard: set[int] = set()
        self._open = set(range(len(request_ids)))
        self._mutex = threading.Lock()  # of what follows, and of the offsets while there is a `_take`
        self._take: Take | None = None
        self._failure: Exception | None = None

    @property
    def has_ended(self) -> bool:
        return not self._open

    def read(self, wait_s: float, take: Take | None = None) -> list[Found]:
        """Return the next events, waiting up to `wait_s` for one.

        During the wait, the feed's thread passes each due event to `take`, which must not block; accepted events are
        not returned. Raises NotFound, StoreUnavailable, and what `take` raised; no event is lost by an error.
        """
        found = self._look()
        if found or self.has_ended:
            return found
        for place, event in self._queued(wait_s, take):
            if place not in self._open:
                continue
            if event is None or event.offset > self._offsets[place]:
                self._must_look.add(place)
            elif place not in self._must_look:
                found += self._advance(place, [event])
        if self._failure is not None:
            raise self._failure
        if not found:
            found = self._look()
        if not found and self._open and (error := self._feed.error) is not None:
            raise error
        return found

    def put(self, place: int, event: Event | None) -> None:
        """Deliver an event; None: one was missed, or the request is over."""
        if event is not None:
            self._heard.add(place)
        with self._mutex:
            if self._take is not None and event is not None and self._is_taken(self._take, place, event):
                return
            self._take = None
            self._queue.put((place, event if self._queue.qsize() < QUEUED else None))

    def was_silent(self, place: int) -> bool:
        if place in self._heard:
            self._heard.discard(place)
            return False
        return place in self._open

    def offset(self, place: int) -> int:
        return self._offsets[place]

    def _is_taken(self, take: Take, place: int, event: Event) -> bool:
        """False: the reader's thread must handle the event."""
        if place not in self._open:
            return True
        known = self._offsets[place]
        if event.offset != known:
            rest = past([event], known)
            if not rest:
                return True
            event = rest[0]
            if event.offset != known:
                return False
        try:
            if not take(place, event):
                return False
        except Exception as error:  # the reader's own thread raises it
            self._failure = error
            return False
        self._offsets[place] = known + len(event.tokens)
        if event.finish_reason is None:
            return True
        self._open.discard(place)
        return False  # so that the reader's thread sees the end

    def _queued(self, wait_s: float, take: Take | None) -> list[tuple[int, Event | None]]:
        found: list[tuple[int, Event | None]] = []
        if wait_s > 0:
            with self._mutex:
                self._take = take
            with suppress(Empty):
                found.append(self._queue.get(timeout=wait_s))
            with self._mutex:
                self._take = None
        with suppress(Empty):
            while True:
                found.append(self._queue.get_nowait())
        return found

    def _look(self) -> list[Found]:
        """Read one request a call, so that no event is lost by an error."""
        for place in [*self._must_look]:
            if found := self._stored(place):
                return found
        return []

    def _stored(self, place: int) -> list[Found]:
        found = self._advance(place, self._requests.events(self._ids[place], self._offsets[place]))
        self._must_look.discard(place)
        return found

    def _advance(self, place: int, events: list[Event]) -> list[Found]:
        found: list[Found] = []
        for event in past(events, self._offsets[place]) if place in self._open else ():
            self._offsets[place] = event.offset + len(event.tokens)
            found.append((place, event))
            if event.finish_reason is not None:
                self._open.discard(place)
                break
        return found

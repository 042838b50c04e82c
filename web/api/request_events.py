"""Wait for requests: ids in, committed events and results out; outages of Redis are waited out.

Nothing here knows how events are written on the wire.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from threading import Event as Flag

from app.errors import StoreUnavailable
from app.logs import of
from app.messages import Event, FinishReason, Result
from app.stages.result import result
from app.store.protocol import Snapshot
from workers.deployment import Deployment

log = logging.getLogger(__name__)

POLL_S = 2.0  # a waiting thread wakes as often: for heartbeats, a client that left, the server's end
GLANCE_S = 0.05  # wait so long for one of several requests before the others are read
OUTAGE_S = 30.0  # wait out a restart of Redis for so long
RETRY_S = 0.5


def follow(deployment: Deployment, request_id: str, offset: int, stopping: Flag) -> Iterator[Event | None]:
    """Yield events after `offset` generated tokens, up to the terminal one.

    Yields None after each POLL_S without an event. Ends without a terminal event when the server stops.
    Raises NotFound, and StoreUnavailable when Redis stays away for long.
    """
    reader = _Reader(deployment, request_id, offset, stopping)
    wait_s = 0.0  # the first read does not wait: the request may have ended long ago
    while not (stopping.is_set() or reader.has_ended):
        events = reader.read(wait_s)
        wait_s = POLL_S
        yield from events or (None,)


def follow_all(
    deployment: Deployment, request_ids: Sequence[str], stopping: Flag
) -> Iterator[tuple[int, Event] | None]:
    """Yield several requests' events, each with its request's place in the list; else as `follow`.

    Requests that were sent together mostly go on together: wait for one, then read the others.
    """
    if len(request_ids) == 1:
        for event in follow(deployment, request_ids[0], 0, stopping):
            yield None if event is None else (0, event)
        return
    readers = dict(enumerate(_Reader(deployment, request_id, 0, stopping) for request_id in request_ids))
    event_s = time.monotonic()
    while readers and not stopping.is_set():
        for i, (place, reader) in enumerate(list(readers.items())):
            events = reader.read(GLANCE_S if i == 0 else 0.0)
            yield from ((place, event) for event in events)
            if events:
                event_s = time.monotonic()
            if reader.has_ended:
                del readers[place]
        if time.monotonic() - event_s >= POLL_S:
            event_s = time.monotonic()
            yield None


def await_end(deployment: Deployment, request_ids: Sequence[str], stopping: Flag) -> bool:
    """Wait until all requests have ended; False if the server stops first.

    Raises NotFound, and StoreUnavailable when Redis stays away for long.
    """
    for request_id in request_ids:
        for has_ended in _until_end(deployment, request_id, stopping):
            if has_ended:
                break
        else:
            return False
    return True


def cancel(deployment: Deployment, request_ids: Sequence[str]) -> None:
    """Cancel those that have not ended. Raises NotFound, StoreUnavailable."""
    for request_id in request_ids:
        deployment.requests.end(request_id, FinishReason.CANCELLED)


def current(deployment: Deployment, request_id: str) -> Result:
    """Read the request as it stands. Raises NotFound."""
    return shown(deployment, deployment.requests.snapshot(request_id))


def shown(deployment: Deployment, snapshot: Snapshot) -> Result:
    """Make the result of a snapshot."""
    return result(snapshot, deployment.tokenizer, time.time())


class _Reader:
    """Read one request's events on, through a restart of Redis."""

    def __init__(self, deployment: Deployment, request_id: str, offset: int, stopping: Flag) -> None:
        self._deployment, self._request_id, self._offset, self._stopping = deployment, request_id, offset, stopping
        self._answered_s = time.monotonic()
        self.has_ended = False

    def read(self, wait_s: float) -> list[Event]:
        """Wait up to `wait_s` for events. Raises NotFound; StoreUnavailable after OUTAGE_S."""
        try:
            events = self._deployment.requests.events(self._request_id, self._offset, wait_s)
        except StoreUnavailable as error:
            _wait_out(error, self._request_id, self._answered_s, self._stopping)
            return []
        self._answered_s = time.monotonic()
        for i, event in enumerate(events):
            self._offset = event.offset + len(event.tokens)
            if event.finish_reason is not None:
                self.has_ended = True
                return events[: i + 1]
        return events


def _until_end(deployment: Deployment, request_id: str, stopping: Flag) -> Iterator[bool]:
    """Yield False after each POLL_S that it runs on, then True; end when the server stops."""
    answered_s = time.monotonic()
    while not stopping.is_set():
        try:
            has_ended = deployment.requests.ended(request_id, POLL_S)
            answered_s = time.monotonic()
        except StoreUnavailable as error:
            _wait_out(error, request_id, answered_s, stopping)
            has_ended = False
        yield has_ended


def _wait_out(error: StoreUnavailable, request_id: str, answered_s: float, stopping: Flag) -> None:
    """Wait RETRY_S before the next try; raise `error` if Redis has been silent for OUTAGE_S."""
    if time.monotonic() - answered_s > OUTAGE_S:
        raise error
    log.warning("the store does not answer, trying again", extra=of(request_id))
    stopping.wait(RETRY_S)

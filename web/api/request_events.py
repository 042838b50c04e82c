"""Wait for requests' committed events and results, through outages of Redis."""

import logging
import time
from collections.abc import Iterator, Sequence
from threading import Event as Flag

from app.errors import StoreUnavailable
from app.logs import of
from app.messages import Event, FinishReason, Result
from app.stages.result import result
from app.store.event_feed import Take
from app.store.protocol import Snapshot
from workers.deployment import Deployment

log = logging.getLogger(__name__)

POLL_S = 2.0  # a waiting thread wakes this often: to send heartbeats, to see a disconnect or the server's end
OUTAGE_S = 30.0  # the longest outage of Redis that is waited out
RETRY_S = 0.5


def follow(
    deployment: Deployment, request_ids: Sequence[str], stopping: Flag, take: Take | None = None, offset: int = 0
) -> Iterator[tuple[int, Event] | None]:
    """Yield (place in the list, event) after `offset` generated tokens, except the events that `take` accepts.

    While this thread waits, the event feed's thread passes each event to `take`, which must not block; False leaves it
    to this thread. Yields None after each POLL_S without an event. Ends after the terminal events, or when the server
    stops. Raises NotFound, and StoreUnavailable after an outage of OUTAGE_S.
    """
    answered_s = time.monotonic()
    wait_s = 0.0  # the first read does not wait: the requests may have ended long ago
    with deployment.feed.reading(request_ids, offset) as reader:
        while not (stopping.is_set() or reader.has_ended):
            try:
                events: Sequence[tuple[int, Event] | None] = reader.read(wait_s, take)
                answered_s = time.monotonic()
            except StoreUnavailable as error:
                _wait_out(error, request_ids[0], answered_s, stopping)
                events = ()
            wait_s = POLL_S
            yield from events or (None,)


def await_end(deployment: Deployment, request_ids: Sequence[str], stopping: Flag) -> bool:
    """False if the server stops first. Raises as `follow` does."""
    return all(_has_ended(deployment, request_id, stopping) for request_id in request_ids)


def cancel(deployment: Deployment, request_ids: Sequence[str]) -> None:
    """Cancel the active ones. Raises NotFound, StoreUnavailable."""
    for request_id in request_ids:
        deployment.requests.end(request_id, FinishReason.CANCELLED)


def current(deployment: Deployment, request_id: str) -> Result:
    """Raises NotFound."""
    return shown(deployment, deployment.requests.snapshot(request_id))


def shown(deployment: Deployment, snapshot: Snapshot) -> Result:
    return result(snapshot, deployment.tokenizer, time.time())


def _has_ended(deployment: Deployment, request_id: str, stopping: Flag) -> bool:
    answered_s = time.monotonic()
    while not stopping.is_set():
        try:
            if deployment.requests.ended(request_id, POLL_S):
                return True
            answered_s = time.monotonic()
        except StoreUnavailable as error:
            _wait_out(error, request_id, answered_s, stopping)
    return False


def _wait_out(error: StoreUnavailable, request_id: str, answered_s: float, stopping: Flag) -> None:
    if time.monotonic() - answered_s > OUTAGE_S:
        raise error
    log.warning("the store does not answer, trying again", extra=of(request_id))
    stopping.wait(RETRY_S)

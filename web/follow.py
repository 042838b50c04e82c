"""A request as its clients wait for it: events as they are committed, and the result as it stands."""

import logging
import time
from collections.abc import Iterator
from threading import Event as Flag

from app.errors import StoreUnavailable
from app.messages import Event, Result
from app.stages.stream import result
from web.office import Office

log = logging.getLogger(__name__)

POLL_S = 1.0  # how often a waiting thread looks up: for clients that left, heartbeats, the end of the server
OUTAGE_S = 30.0  # a restart of Redis is waited out for so long
RETRY_S = 0.5


def follow(office: Office, request_id: str, offset: int, stopping: Flag) -> Iterator[Event | None]:
    """Events after `offset` generated tokens, up to the terminal one; None after each second without any.

    Ends without a terminal event when the server stops.
    Raises NotFound, and StoreUnavailable when Redis stays away for long.
    """
    answered_s = time.monotonic()
    wait_s = 0.0  # the first look does not wait: the request may have ended long ago
    while not stopping.is_set():
        try:
            events = office.requests.events(request_id, offset, wait_s)
            answered_s, wait_s = time.monotonic(), POLL_S
        except StoreUnavailable:
            if time.monotonic() - answered_s > OUTAGE_S:
                raise
            log.warning("request %s: the store does not answer, trying again", request_id)
            stopping.wait(RETRY_S)
            events = []
        if not events:
            yield None
        for event in events:
            yield event
            offset = event.offset + len(event.tokens)
            if event.finish_reason is not None:
                return


def until_end(office: Office, request_id: str, stopping: Flag) -> Iterator[bool]:
    """False after each second the request runs on, then True; nothing more when the server stops.

    Raises NotFound, and StoreUnavailable when Redis stays away for long.
    """
    answered_s = time.monotonic()
    while not stopping.is_set():
        try:
            has_ended = office.requests.ended(request_id, POLL_S)
            answered_s = time.monotonic()
        except StoreUnavailable:
            if time.monotonic() - answered_s > OUTAGE_S:
                raise
            log.warning("request %s: the store does not answer, trying again", request_id)
            stopping.wait(RETRY_S)
            has_ended = False
        yield has_ended
        if has_ended:
            return


def current(office: Office, request_id: str) -> Result:
    """The request as it stands. Raises NotFound."""
    snapshot = office.requests.snapshot(request_id)
    return result(
        snapshot.record,
        snapshot.status,
        snapshot.tokens,
        snapshot.finish_reason,
        snapshot.stats,
        snapshot.error,
        office.tokenizer,
        time.time() if snapshot.ended_s is None else snapshot.ended_s,
    )

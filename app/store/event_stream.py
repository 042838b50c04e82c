"""Write and read a request's event stream, a Redis stream (`events:<id>`).

scripts/commit.lua appends an entry a commit, and publishes it for app/store/event_feed.py.
"""

from typing import Any

from app.messages import Event
from app.store.keys import Keys
from app.store.protocol import Committed, Outcome, check, final_status

ROWS = 64  # events of one call of the script, so that none keeps Redis busy for long


def commit_calls(
    keys: Keys, owner: str, events: list[tuple[str, Event]], mailbox: str, ttl_ms: int
) -> list[tuple[list[str], list[Any]]]:
    shared = [keys.active, keys.owned(owner), keys.unsettled, keys.mail(mailbox)]
    calls = []
    for first in range(0, len(events), ROWS):
        names: list[str] = [*shared]
        args: list[Any] = [owner, ttl_ms, keys.committed]
        for request_id, event in events[first : first + ROWS]:
            check(event)
            names += (keys.request(request_id), keys.events(request_id), keys.ended(request_id))
            stored, stats = stored_texts(event)
            reason = event.finish_reason
            end = ("", "", "") if reason is None else (final_status(reason), reason, event.error or "")
            args += (request_id, event.offset, len(event.tokens), stored, stats, *end)
        calls.append((names, args))
    return calls


def stored_texts(event: Event) -> tuple[str, str]:
    return event.json(), event.stats.json()


def committed(replies: list[list[Any]]) -> Committed:
    outcomes = [Outcome(outcome) for reply in replies for outcome in reply[:-1]]
    return Committed(outcomes, replies[-1][-1] if replies else 0)


def read_events(entries: list[tuple[str, dict[str, str]]]) -> list[Event]:
    return [Event.read(fields["event"]) for _, fields in entries]

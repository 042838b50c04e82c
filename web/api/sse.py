"""Write a request's committed events as server-sent events.

    id: <offset after>          generated tokens so far; the place to resume at
    event: tokens               data: {id, offset, tokens, proposers, pieces, text, stats}; on request logprobs, and
                                rejected: [{place, drafter, tokens, text}], wrong guesses of the token at `place`
    event: end                  data: the Result
    event: error                data: as any error's answer; the stream ends, the request may go on
    : comment                   a heartbeat after 3 to 5 s of silence

`pieces` holds the text of each token; together they are `text`, and all `text` together is the result's. A character of
several tokens comes with the last of them; a possible beginning of a stop string is held back. A closed connection does
not cancel the request; DELETE does.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from threading import Event as Flag
from typing import Any

from msgspec.json import encode
from msgspec.structs import asdict

from app.engine.text.stop_strings import AnswerStream
from app.errors import NotFound, StoreUnavailable
from app.messages import Event, Record
from app.store.protocol import past
from web.api.http_io import Client
from web.api.request_events import current, follow
from web.errors import error_body
from workers.deployment import Deployment

HEARTBEAT_S = 3.0
RECONNECT_MS = 1000


def frames(
    deployment: Deployment,
    record: Record,
    before: Sequence[int],
    stopping: Flag,
    client: Client,
    offset: int | None = None,
) -> Iterator[str]:
    """Yield the stream after the generated tokens `before`, known to the client.

    `offset`: resume after so many tokens, if the store has fewer by now.
    """
    yield f"retry: {RECONNECT_MS}\n: request {record.id}\n\n"  # sent at once, with the headers
    try:
        yield from _frames(deployment, record, before, stopping, client, len(before) if offset is None else offset)
    except NotFound:
        yield written_frame("error", error_body("the request has expired"))
    except StoreUnavailable:
        yield written_frame("error", error_body("the store does not answer; reconnect with the last id"))


def _frames(
    deployment: Deployment, record: Record, before: Sequence[int], stopping: Flag, client: Client, offset: int
) -> Iterator[str]:
    text = AnswerStream(deployment.tokenizer, record.stop)
    text.feed(before)
    ended = False

    def frame_of(_: int, event: Event) -> str:
        nonlocal ended
        known = event.tokens[: max(0, offset - event.offset)]
        if known:
            text.feed(known)
        ended = event.finish_reason is not None
        return "".join(_tokens_frame(record.id, rest, text) for rest in past([event], offset))

    yield from event_frames(deployment, [record.id], stopping, client, frame_of, len(before))
    if ended:
        result = current(deployment, record.id)
        yield written_frame("end", result.model_dump_json(), len(result.token_ids))


def event_frames(
    deployment: Deployment,
    request_ids: Sequence[str],
    stopping: Flag,
    client: Client,
    frame_of: Callable[[int, Event], str],
    offset: int = 0,
) -> Iterator[str]:
    """Yield the frames of (place in the list, event), and heartbeats.

    If the server can write from any thread, the feed's thread writes frames while this one waits. Ends some time after
    the client has disconnected.
    """
    sent_s = time.monotonic()

    def take(place: int, event: Event) -> bool:
        nonlocal sent_s
        writer = client.writer()
        if writer is None:
            return False
        if frame := frame_of(place, event):
            writer.write(frame.encode())
            sent_s = time.monotonic()
        return True

    for found in follow(deployment, request_ids, stopping, take, offset):
        if found is not None:
            frame = frame_of(*found)
        elif client.is_gone():  # a write would fail, but there is nothing to write
            return
        else:
            frame = ": still here\n\n" if time.monotonic() - sent_s >= HEARTBEAT_S else ""
        if frame:
            yield frame
            sent_s = time.monotonic()


def _tokens_frame(request_id: str, event: Event, text: AnswerStream) -> str:
    """Empty for an end with neither tokens nor text."""
    pieces, rejected = _pieces(event, text)
    rest = text.flush() if event.finish_reason is not None else ""
    if pieces:
        pieces[-1] += rest
    elif not rest:
        return ""
    data = {
        "id": request_id,
        "offset": event.offset,
        "tokens": event.tokens,
        "proposers": event.proposers,
        "pieces": pieces,
        "text": "".join(pieces) or rest,
        "stats": event.stats.as_dict(),
    }
    if rejected:
        data["rejected"] = rejected
    if event.logprobs:
        data["logprobs"] = [one.model_dump(mode="json") for one in event.logprobs]
    return written_frame("tokens", encode(data).decode(), event.offset + len(event.tokens))


def _pieces(event: Event, text: AnswerStream) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the tokens' texts, and the rejected guesses with theirs."""
    if not event.rejected:
        return text.pieces(event.tokens), []
    pieces, rejected = [], []
    for place, token in enumerate(event.tokens):
        rejected += [{**asdict(one), "text": text.after(one.tokens)} for one in event.rejected if one.place == place]
        pieces += text.pieces([token])
    return pieces, rejected


def written_frame(kind: str, data: str, offset: int | None = None) -> str:
    place = "" if offset is None else f"id: {offset}\n"
    return f"{place}event: {kind}\ndata: {data}\n\n"  # JSON has no line breaks of its own

"""Write a request as server-sent events: its committed events in, text of the stream out.

    id: <offset after>          generated tokens so far; the place to resume at
    event: tokens               data: {id, offset, tokens, proposers, pieces, text, stats}, logprobs if asked for
    event: end                  data: the Result
    event: error                data: as any error's answer; the stream cannot go on, the request may
    : comment                   a heartbeat after 3 to 5 s of silence

`pieces` holds the text of each token; together they are `text`, and all `text` together is the result's. A character of
several tokens comes with the last of them; text that may begin a stop string comes once it turned out to be none.
Closing the connection does not cancel the request: a client can resume at its last id; DELETE cancels.
"""

import time
from collections.abc import Iterator, Sequence
from threading import Event as Flag

from msgspec.json import encode

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
    """Yield the stream after the generated tokens `before`, which the client already has.

    If the server can write from any thread, events that come while this one waits are written by the feed's thread.
    `offset`: resume after so many tokens, if the store has fewer by now. The stream ends some time after the client
    has disconnected.
    """
    yield f"retry: {RECONNECT_MS}\n: request {record.id}\n\n"  # out at once, and the headers with it
    try:
        yield from _frames(deployment, record, before, stopping, client, len(before) if offset is None else offset)
    except NotFound:
        yield _frame("error", error_body("the request has been forgotten"))
    except StoreUnavailable:
        yield _frame("error", error_body("the store does not answer; come back with your last id"))


def _frames(
    deployment: Deployment,
    record: Record,
    before: Sequence[int],
    stopping: Flag,
    client: Client,
    offset: int,
) -> Iterator[str]:
    text = AnswerStream(deployment.tokenizer, record.stop)
    text.feed(before)
    sent_s = time.monotonic()
    ended = False

    def frame_of(event: Event) -> str:
        nonlocal ended, sent_s
        known = event.tokens[: max(0, offset - event.offset)]
        if known:
            text.feed(known)
        ended, sent_s = event.finish_reason is not None, time.monotonic()
        return "".join(_tokens_frame(record.id, rest, text) for rest in past([event], offset))

    def take(event: Event) -> bool:
        writer = client.writer()
        if writer is None:
            return False
        if frame := frame_of(event):
            writer.write(frame.encode())
        return True

    for event in follow(deployment, record.id, len(before), stopping, take):
        if event is not None:
            frame = frame_of(event)
        elif client.is_gone():  # a write would fail, but there is nothing to write
            return
        elif time.monotonic() - sent_s >= HEARTBEAT_S:
            frame = ": still here\n\n"
        else:
            frame = ""
        if frame:
            yield frame
            sent_s = time.monotonic()
    if ended:
        result = current(deployment, record.id)
        yield _frame("end", result.model_dump_json(), len(result.token_ids))


def _tokens_frame(request_id: str, event: Event, text: AnswerStream) -> str:
    """Return the frame of an event; empty for an end with neither tokens nor text."""
    pieces = text.pieces(event.tokens)
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
    if event.logprobs:
        data["logprobs"] = [one.model_dump(mode="json") for one in event.logprobs]
    return _frame("tokens", encode(data).decode(), event.offset + len(event.tokens))


def _frame(kind: str, data: str, offset: int | None = None) -> str:
    place = "" if offset is None else f"id: {offset}\n"
    return f"{place}event: {kind}\ndata: {data}\n\n"  # JSON has no line breaks of its own

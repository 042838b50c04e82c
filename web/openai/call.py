"""Answer a call of requests, one a text, whole or as a stream.

A comment is a heartbeat after 3 s of silence. A client that disconnects cancels its requests: the stream cannot be
resumed.
"""

from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from threading import Event as Flag

from pydantic import BaseModel

from app.errors import GenerationFailed, NotFound, RequestCancelled, StoreUnavailable
from app.messages import Event, FinishReason, Record, Stats
from web.api.http_io import Client
from web.api.request_events import await_end, cancel
from web.api.sse import event_frames
from web.openai.responses import PredictionDetails, PromptDetails, Usage
from web.openai.text_stream import REASONS, Echo, GrowingText, echoed
from web.openai.writers import Head, ResponseWriter
from workers.deployment import Deployment

STOPPING = "the server is stopping; try again"


@dataclass(frozen=True, slots=True)
class Call:
    records: list[Record]
    prompts: int  # the records of one prompt stand side by side
    writer: ResponseWriter
    head: Head
    echo: Echo

    @property
    def ids(self) -> list[str]:
        return [record.id for record in self.records]


def whole(
    deployment: Deployment, call: Call, stopping: Flag, watched: AbstractContextManager[None]
) -> BaseModel | None:
    """Wait for the whole answer within `watched`; None if the server stops first.

    Raises GenerationFailed, NotFound, StoreUnavailable.
    """
    has_ended = False
    try:
        with watched:
            has_ended = await_end(deployment, call.ids, stopping)
    finally:
        if not has_ended:
            _cancel(deployment, call.ids)
    if not has_ended:
        return None
    ends = [deployment.requests.snapshot(request_id) for request_id in call.ids]
    for end in ends:
        if end.finish_reason not in REASONS:
            raise _failure(end.finish_reason, end.error)
    texts = []
    for end in ends:
        text = GrowingText(deployment.tokenizer, end.record)
        part = echoed(
            deployment.tokenizer, end, text.take(end.tokens, end.logprobs, end.stats_after, is_end=True), call.echo
        )
        texts.append((part, text.ending(end.finish_reason)))
    counts = [0 if call.echo is Echo.PROMPT else len(end.tokens) for end in ends]
    return call.writer.whole(call.head, texts, _usage(call, [*zip(counts, [end.stats for end in ends], strict=True)]))


def frames(
    deployment: Deployment, call: Call, stopping: Flag, watched: AbstractContextManager[None], client: Client
) -> Iterator[str]:
    has_ended = False
    try:
        with watched:
            has_ended = yield from _frames(deployment, call, stopping, client)
    except GenerationFailed as error:
        yield call.writer.failed(call.head, str(error))
    except NotFound:
        yield call.writer.failed(call.head, "the request has expired")
    except StoreUnavailable:
        yield call.writer.failed(call.head, "the store does not answer; try again")
    finally:  # also after a broken connection
        if not has_ended:
            _cancel(deployment, call.ids)


def _frames(deployment: Deployment, call: Call, stopping: Flag, client: Client) -> Generator[str, None, bool]:
    texts = [GrowingText(deployment.tokenizer, record) for record in call.records]
    committed: list[tuple[int, Stats]] = [(0, Stats())] * len(texts)
    open_texts = len(texts)
    yield call.writer.begin(call.head, len(texts), _usage(call, committed))

    def frame_of(place: int, event: Event) -> str:
        nonlocal open_texts
        if event.finish_reason is not None and event.finish_reason not in REASONS:
            raise _failure(event.finish_reason, event.error)
        committed[place] = (event.offset + len(event.tokens), event.stats)
        open_texts -= event.finish_reason is not None
        return _event_frame(call, place, texts[place], event)

    yield from event_frames(deployment, call.ids, stopping, client, frame_of)
    if open_texts:
        yield call.writer.failed(call.head, STOPPING)
        return False
    yield call.writer.done(call.head, _usage(call, committed))
    return True


def _event_frame(call: Call, place: int, text: GrowingText, event: Event) -> str:
    part = text.take(event.tokens, event.logprobs, [event.stats], is_end=event.finish_reason is not None)
    frame = call.writer.part(call.head, place, part)
    if event.finish_reason is None:
        return frame
    return frame + call.writer.end(call.head, place, text.ending(event.finish_reason))


def _failure(reason: FinishReason | None, error: str | None) -> GenerationFailed:
    if reason is FinishReason.CANCELLED:
        return RequestCancelled("the request was cancelled")
    return GenerationFailed(error or "the request failed")


def _usage(call: Call, committed: list[tuple[int, Stats]]) -> Usage:
    each = len(call.records) // call.prompts
    prompt = sum(len(record.prompt_ids) for record in call.records[::each])
    completion = sum(tokens for tokens, _ in committed)
    accepted = sum(stats.accepted for _, stats in committed)
    drafted = sum(stats.drafted for _, stats in committed)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptDetails(cached_tokens=sum(stats.reused for _, stats in committed[::each])),
        completion_tokens_details=PredictionDetails(
            accepted_prediction_tokens=accepted, rejected_prediction_tokens=drafted - accepted
        ),
    )


def _cancel(deployment: Deployment, request_ids: list[str]) -> None:
    with suppress(NotFound, StoreUnavailable):
        cancel(deployment, request_ids)

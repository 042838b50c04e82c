"""Record a process's spans of work, and hand them to the sinks that the settings select.

One thread works and only appends; the heartbeat's thread flushes. Knows neither mailboxes nor stages.
"""

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, Self

from app.config import Settings
from app.errors import StoreUnavailable
from app.store.traces import Traces
from app.verifier.metrics import RequestProgress
from workers.tracing.sinks import MOST_KEPT, FileSink, OtlpSink, RedisSink, Sink, WorkSpan


class Recorder:
    """The spans of one worker: `kind` names those of its own work."""

    def __init__(self, kind: str, sinks: Sequence[Sink]) -> None:
        self.sinks: Final = tuple(sinks)
        self._kind = kind
        self._waiting = deque[WorkSpan](maxlen=MOST_KEPT)
        self._start_s = 0.0
        self._request_ids: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: Settings, traces: Traces, kind: str, node: str) -> Self:
        """Record to files, to Redis and to a collector, as the settings say. Raises InvalidSettings."""
        sinks: list[Sink] = [] if settings.spans is None else [FileSink(settings.spans, kind, node)]
        if settings.otlp_url is not None:
            sinks.append(OtlpSink(settings.otlp_url, settings.otlp_part, node))
        return cls(kind, [*sinks, RedisSink(traces, kind, node)])  # Redis last: it alone may be away

    def begin_work(self) -> None:
        """Begin a piece of work now; one under way is dropped."""
        self._start_s, self._request_ids = time.time(), ()

    def working_on(self, request_ids: Iterable[str]) -> None:
        """Say which requests the piece of work under way is for."""
        self._request_ids = tuple(request_ids)

    def end_work(self) -> None:
        """End the piece of work that began last."""
        self.record(WorkSpan(self._kind, self._start_s, time.time(), self._request_ids))

    def record(self, span: WorkSpan) -> None:
        """Keep a span until the next flush. From any thread."""
        self._waiting.append(span)

    def flush(self, progress: Mapping[str, RequestProgress]) -> None:
        """Write what waits, and how far requests are. Raises StoreUnavailable; the other sinks have it then."""
        spans = []
        while self._waiting:
            spans.append(self._waiting.popleft())
        for sink in self.sinks:
            sink.write(spans, progress)

    def close(self) -> None:
        """Write the rest; wait for a collector for a while."""
        with suppress(StoreUnavailable):  # Redis has timelines only; the other sinks have all by then
            self.flush({})
        for sink in self.sinks:
            sink.close()

"""Record a process's spans of work, and write them to Redis' timelines and to a configured collector.

The working thread only appends; the heartbeat's thread writes.
"""

import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Final

from app.config import Settings
from app.errors import InvalidSettings, StoreUnavailable
from app.store.traces import Traces
from app.verifier.metrics import RequestProgress
from workers.tracing.spans import Sink, WorkSpan
from workers.tracing.timelines import Timelines

MOST_WAITING = 65_536  # spans between two flushes; far more than a heartbeat's period can hold


class Recorder:
    def __init__(self, settings: Settings, traces: Traces, kind: str, node: str) -> None:
        """Raises InvalidSettings."""
        timelines = Timelines(traces, kind, node)
        # Redis comes last: if it does not answer, the collector has the spans already.
        self.sinks: Final[tuple[Sink, ...]] = (*_collector(settings, node), timelines)
        self._kind = kind
        self._waiting = deque[WorkSpan](maxlen=MOST_WAITING)
        self._start_s = 0.0
        self._request_ids: tuple[str, ...] = ()

    def begin_work(self) -> None:
        self._start_s, self._request_ids = time.time(), ()

    def working_on(self, request_ids: Iterable[str]) -> None:
        self._request_ids = tuple(request_ids)

    def end_work(self) -> None:
        if self._request_ids:
            self.record(WorkSpan(self._kind, self._start_s, time.time(), self._request_ids))

    def record(self, span: WorkSpan) -> None:
        """Thread-safe."""
        self._waiting.append(span)

    def flush(self, progress: Mapping[str, RequestProgress]) -> None:
        """Write the waiting spans and the requests' progress. Raises StoreUnavailable."""
        spans = []
        while self._waiting:
            spans.append(self._waiting.popleft())
        for sink in self.sinks:
            sink.write(spans, progress)

    def close(self) -> None:
        with suppress(StoreUnavailable):
            self.flush({})
        for sink in self.sinks:
            sink.close()


def _collector(settings: Settings, node: str) -> tuple[Sink, ...]:
    if settings.otlp_url is None:
        return ()
    try:
        otlp = import_module("workers.tracing.otlp")
    except ImportError as error:
        raise InvalidSettings(
            f"PACELINE_OTLP_URL needs the package {error.name}: install requirements-tracing.txt"
        ) from error
    return (otlp.Collector(settings.otlp_url, settings.otlp_part, node, settings.model_name),)

"""Write spans of work: to a file for each process, to the timelines in Redis, to a collector by OTLP.

All sinks run in the heartbeat's thread.
"""

import json
import os
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from heapq import nsmallest
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from zlib import crc32

from app.errors import InvalidSettings
from app.messages import FinishReason
from app.store.traces import Trace, Traces, TraceSpan, trace_name
from app.verifier.metrics import RequestProgress

MOST_KEPT = 65_536  # spans between two flushes; far more than a heartbeat's period can hold
MOST_TO_REDIS = 4096  # of them
MOST_OF_BATCH = 16  # requests of a span, in Redis
MOST_TIMELINES = 256  # requests
MOST_ROUNDS = 4096  # requests
SHORTEST_WAIT_S = 0.0001


class WorkSpan(NamedTuple):
    """A piece of work on requests, named by the kind of its worker; wall clock. No requests: none were named."""

    name: str
    start_s: float
    end_s: float
    request_ids: tuple[str, ...]


class Sink(Protocol):
    """A place that spans are written to."""

    def write(self, spans: Sequence[WorkSpan], progress: Mapping[str, RequestProgress]) -> None:
        """Write spans, and how far requests are. Raises StoreUnavailable."""
        ...

    def close(self) -> None:
        """Finish writing: the process ends."""
        ...


class FileSink:
    """Append spans to a file for each process, where the settings name a folder; `bench/timeline.py` draws them.

    One JSON object a line: `node`, `kind`, `start_s` and `end_s` (wall clock), `sequences` (in the batch; 0: unknown).
    """

    def __init__(self, folder: Path, kind: str, node: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / f"{node}-{os.getpid()}.jsonl"
        self._kind = kind
        self._names = {"node": node, "kind": kind}

    def write(self, spans: Sequence[WorkSpan], progress: Mapping[str, RequestProgress]) -> None:
        """Append the worker's own spans."""
        lines = [
            json.dumps({**self._names, "start_s": start_s, "end_s": end_s, "sequences": len(request_ids)})
            for name, start_s, end_s, request_ids in spans
            if name == self._kind
        ]
        if lines:
            with self._file.open("a", encoding="utf-8") as file:
                file.write("\n".join(lines) + "\n")

    def close(self) -> None:
        """Leave the file as it is: it is closed after each write."""


class RedisSink:
    """Write the last requests' timelines, for the dashboard.

    Where a batch holds more requests than are traced, the same few are chosen in every process and every step.
    """

    def __init__(self, store: Traces, kind: str, node: str) -> None:
        self._store = store
        self._kind, self._node = kind, node
        self._known: OrderedDict[str, None] = OrderedDict()

    def write(self, spans: Sequence[WorkSpan], progress: Mapping[str, RequestProgress]) -> None:
        """Write the worker's own spans, and how far the traced requests are. Raises StoreUnavailable."""
        found: dict[str, list[TraceSpan]] = {}
        own = [span for span in spans if span.request_ids and span.name == self._kind]
        for _, start_s, end_s, request_ids in own[-MOST_TO_REDIS:]:
            span = TraceSpan(round(start_s, 5), round(end_s, 5), self._kind, self._node, len(request_ids))
            for request_id in _chosen(request_ids):
                found.setdefault(request_id, []).append(span)
        for request_id in found:
            self._known[request_id] = None
            self._known.move_to_end(request_id)
        while len(self._known) > MOST_TIMELINES:
            self._known.popitem(last=False)
        facts = {request_id: _facts(one) for request_id, one in progress.items() if request_id in self._known}
        wanted = {**found, **facts}
        self._store.add(Trace(trace_name(id_), facts.get(id_, {}), found.get(id_, [])) for id_ in wanted)

    def close(self) -> None:
        """Leave the connection to the deployment."""


class OtlpSink:
    """Send traces to a collector for OpenTelemetry, where the settings name one (`workers.tracing.otlp`).

    Beside the spans of work there is, for each request, the time between two steps of its verifier: it waited for
    drafts, or for its turn.
    """

    def __init__(self, url: str, part: float, node: str) -> None:
        """Load the packages that it takes. Raises InvalidSettings without them."""
        try:
            otlp = import_module("workers.tracing.otlp")
        except ImportError as error:
            raise InvalidSettings(
                f"PACELINE_OTLP_URL: {error.name} is missing; install requirements-tracing.txt, or the extra `tracing`"
            ) from error
        self._is_traced = otlp.is_traced
        self._otlp = otlp.Otlp(url, node)
        self._part, self._node = part, node
        self._rounds: OrderedDict[str, tuple[int, float]] = OrderedDict()  # by request: steps, the last one's end

    def write(self, spans: Sequence[WorkSpan], progress: Mapping[str, RequestProgress]) -> None:
        """Send spans, and the requests that have ended."""
        for request_id, one in progress.items():
            if one.started_s is not None:  # here; else it had waited for another verifier
                self._rounds.setdefault(request_id, (0, one.created_s))
        for span in spans:
            for request_id in span.request_ids:
                if self._is_traced(request_id, self._part):
                    self._send(span, request_id)
        for request_id, one in progress.items():
            if one.reason is not None and self._is_traced(request_id, self._part):
                self._end(request_id, one)

    def close(self) -> None:
        """Send the rest."""
        self._otlp.close()

    def _send(self, span: WorkSpan, request_id: str) -> None:
        facts: dict[str, Any] = {"paceline.node": self._node, "paceline.batch.sequences": len(span.request_ids)}
        if span.name == "verify":
            number, since_s = self._round(request_id, span)
            facts["paceline.round"] = number
            if span.start_s - since_s > SHORTEST_WAIT_S:
                self._otlp.span(request_id, "wait", since_s, span.start_s, {"paceline.round": number})
        self._otlp.span(request_id, span.name, span.start_s, span.end_s, facts)

    def _round(self, request_id: str, span: WorkSpan) -> tuple[int, float]:
        """Count this verifier's step for the request; returns its number, and since when the request waited."""
        number, since_s = self._rounds.get(request_id, (0, span.start_s))
        self._rounds[request_id] = number + 1, span.end_s
        self._rounds.move_to_end(request_id)
        while len(self._rounds) > MOST_ROUNDS:
            self._rounds.popitem(last=False)
        return number + 1, since_s

    def _end(self, request_id: str, progress: RequestProgress) -> None:
        is_done = progress.reason in (FinishReason.STOP, FinishReason.LENGTH)
        end_s = progress.stats.last_token_s if is_done else None
        facts = {
            "paceline.finish_reason": str(progress.reason),
            "paceline.tokens": progress.tokens,
            "paceline.rounds": progress.stats.rounds,
            "paceline.drafted": progress.stats.drafted,
            "paceline.accepted": progress.stats.accepted,
        }
        self._otlp.request(request_id, progress.created_s, end_s or time.time(), facts)


def _chosen(request_ids: tuple[str, ...]) -> Sequence[str]:
    """Choose the requests of a batch whose timelines are written."""
    return nsmallest(MOST_OF_BATCH, request_ids, key=_rank) if len(request_ids) > MOST_OF_BATCH else request_ids


def _rank(request_id: str) -> int:
    return crc32(request_id.encode())


def _facts(progress: RequestProgress) -> dict[str, str]:
    """List the known facts of a request as Redis holds them; the store merges the facts of two processes."""
    facts = {
        "created_s": f"{progress.created_s:.5f}",
        "tokens": str(progress.tokens),
        "reason": f'"{progress.reason or ""}"',
        "stats": json.dumps(progress.stats.as_dict()),
    }
    return facts if progress.started_s is None else {**facts, "started_s": f"{progress.started_s:.5f}"}

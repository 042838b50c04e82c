"""Who was at work on which request when: the last requests' timelines, for the dashboard.

Where a batch holds more requests than are traced, the same few are chosen in every process and every step. The working
thread appends; the heartbeat's writes.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from heapq import nsmallest
from time import time
from zlib import crc32

from app.store.traces import Trace, Traces, TraceSpan, trace_name
from app.telemetry.verifier_metrics import RequestProgress

MOST_OF_BATCH = 16
MOST_KEPT = 4096  # spans between two flushes
MOST_KNOWN = 256  # requests


class Tracing:
    """The spans of one process."""

    def __init__(self, store: Traces, kind: str, node: str) -> None:
        self._store = store
        self._names = (kind, node)
        self._waiting = deque[tuple[float, float, int, list[str]]](maxlen=MOST_KEPT)
        self._known: OrderedDict[str, None] = OrderedDict()
        self._start_s = 0.0
        self._about: list[str] = []
        self._sequences = 0

    def toggle(self, is_busy: bool) -> None:
        """A piece of work begins now, or has ended."""
        if is_busy:
            self._start_s, self._about = time(), []
        elif self._about:
            self._waiting.append((self._start_s, time(), self._sequences, self._about))
            self._about = []

    def about(self, request_ids: Iterable[str]) -> None:
        """The piece of work under way was for these."""
        ids = [*request_ids]
        self._sequences = len(ids)
        self._about = nsmallest(MOST_OF_BATCH, ids, key=_rank) if len(ids) > MOST_OF_BATCH else ids

    def flush(self, told: Mapping[str, RequestProgress]) -> None:
        """Write what waits, and how far the traced requests are. Raises StoreUnavailable."""
        spans: dict[str, list[TraceSpan]] = {}
        while self._waiting:
            start_s, end_s, sequences, ids = self._waiting.popleft()
            span = TraceSpan(round(start_s, 5), round(end_s, 5), *self._names, sequences)
            for request_id in ids:
                spans.setdefault(request_id, []).append(span)
        for request_id in spans:
            self._known[request_id] = None
            self._known.move_to_end(request_id)
        while len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)
        facts = {request_id: _facts(news) for request_id, news in told.items() if request_id in self._known}
        wanted = {**spans, **facts}
        self._store.add(Trace(trace_name(id_), facts.get(id_, {}), spans.get(id_, [])) for id_ in wanted)


def _facts(told: RequestProgress) -> dict[str, str]:
    """Facts of two processes, one after the other, go together: what is not known is left as it stands."""
    facts = {
        "created_s": f"{told.created_s:.5f}",
        "tokens": str(told.tokens),
        "reason": f'"{told.reason or ""}"',
        "stats": told.stats.model_dump_json(),
    }
    return facts if told.started_s is None else {**facts, "started_s": f"{told.started_s:.5f}"}


def _rank(request_id: str) -> int:
    return crc32(request_id.encode())

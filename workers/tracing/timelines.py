"""Write spans to the latest requests' timelines in Redis, for the dashboard and `bench timeline`."""

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from heapq import nsmallest
from zlib import crc32

from app.store.traces import Trace, Traces, TraceSpan, trace_name
from app.verifier.metrics import RequestProgress
from workers.tracing.spans import WorkSpan

MOST_WRITTEN = 4096  # spans of one write
MOST_OF_BATCH = 16  # requests of a span
MOST_KNOWN = 256  # requests


class Timelines:
    """Implements `Sink`.

    Of a larger batch, every process chooses the same MOST_OF_BATCH requests in every step.
    """

    def __init__(self, store: Traces, kind: str, node: str) -> None:
        self._store = store
        self._kind, self._node = kind, node
        self._known: OrderedDict[str, None] = OrderedDict()

    def write(self, spans: Sequence[WorkSpan], progress: Mapping[str, RequestProgress]) -> None:
        """Raises StoreUnavailable."""
        found: dict[str, list[TraceSpan]] = {}
        own = [span for span in spans if span.request_ids and span.name == self._kind]
        for _, start_s, end_s, request_ids in own[-MOST_WRITTEN:]:
            span = TraceSpan(round(start_s, 5), round(end_s, 5), self._kind, self._node, len(request_ids))
            for request_id in _chosen(request_ids):
                found.setdefault(request_id, []).append(span)
        for request_id in found:
            self._known[request_id] = None
            self._known.move_to_end(request_id)
        while len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)
        facts = {request_id: _facts(one) for request_id, one in progress.items() if request_id in self._known}
        wanted = {**found, **facts}
        self._store.add(Trace(trace_name(id_), facts.get(id_, {}), found.get(id_, [])) for id_ in wanted)

    def close(self) -> None: ...


def _chosen(request_ids: tuple[str, ...]) -> Sequence[str]:
    return nsmallest(MOST_OF_BATCH, request_ids, key=_rank) if len(request_ids) > MOST_OF_BATCH else request_ids


def _rank(request_id: str) -> int:
    return crc32(request_id.encode())


def _facts(progress: RequestProgress) -> dict[str, str]:
    facts = {
        "created_s": f"{progress.created_s:.5f}",
        "tokens": str(progress.tokens),
        "reason": f'"{progress.reason or ""}"',
        "stats": json.dumps(progress.stats.as_dict()),
    }
    return facts if progress.started_s is None else {**facts, "started_s": f"{progress.started_s:.5f}"}

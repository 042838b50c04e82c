"""Send traces to a collector for OpenTelemetry: one a request, of the spans that each process measures anyway.

No context is passed on: a trace's id, and that of the span it hangs below, are a hash of the request's id, so every
process knows them. That span, `request`, is written by the process that sees the request end. The rest hangs directly
below it: `admit`, then by round `wait`, `verify` (the verifier's step: schedule, verify, commit), `draft`, `fuse`.

A collector that is slow or away costs spans, never time: they wait in a bounded queue for a thread of the SDK's.
Loaded only where the settings name a collector; needs the packages of requirements-tracing.txt.
"""

from collections.abc import Mapping
from hashlib import sha256

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags, set_span_in_context

MOST_WAITING = 16_384  # spans
SEND_EVERY_MS = 1000
PATIENCE_S = 2.0  # with a collector, tries again included: a process that ends waits for it so long
Attributes = Mapping[str, str | int | float]


class Otlp:
    """Connect one process to the collector. For one thread."""

    def __init__(self, url: str, node: str) -> None:
        self._ids = _Ids()
        resource = Resource.create({"service.name": "paceline", "service.instance.id": node})
        # A sampler of the environment's would decide in each process anew; `is_traced` has decided for all of them.
        self._provider = TracerProvider(resource=resource, id_generator=self._ids, sampler=ALWAYS_ON)
        exporter = OTLPSpanExporter(endpoint=f"{url.rstrip('/')}/v1/traces", timeout=PATIENCE_S)
        self._provider.add_span_processor(
            BatchSpanProcessor(exporter, max_queue_size=MOST_WAITING, schedule_delay_millis=SEND_EVERY_MS)
        )
        self._tracer = self._provider.get_tracer("paceline")

    def span(self, request_id: str, name: str, start_s: float, end_s: float, attributes: Attributes) -> None:
        """Send a piece of work on a request. Wall clock."""
        trace_id, root_id = ids(request_id)
        root = SpanContext(trace_id, root_id, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
        self._write(name, set_span_in_context(NonRecordingSpan(root)), SpanKind.INTERNAL, start_s, end_s, attributes)

    def request(self, request_id: str, start_s: float, end_s: float, attributes: Attributes) -> None:
        """Send the request from admission to its end. Wall clock."""
        self._ids.next = ids(request_id)
        self._write("request", Context(), SpanKind.SERVER, start_s, end_s, attributes)

    def close(self) -> None:
        """Send what waits."""
        self._provider.shutdown()

    def _write(
        self, name: str, context: Context, kind: SpanKind, start_s: float, end_s: float, attributes: Attributes
    ) -> None:
        span = self._tracer.start_span(name, context, kind, dict(attributes), start_time=_ns(start_s))
        span.end(_ns(max(start_s, end_s)))


def ids(request_id: str) -> tuple[int, int]:
    """Derive a request's trace id, and the id of the span in it below which all others hang."""
    digest = sha256(request_id.encode()).digest()
    return int.from_bytes(digest[:16]), int.from_bytes(digest[16:24])


def is_traced(request_id: str, part: float) -> bool:
    """Return whether this request is among the `part` that is traced; every process decides the same."""
    return int.from_bytes(sha256(request_id.encode()).digest()[24:]) < part * 2**64


class _Ids(RandomIdGenerator):
    """Give the ids of the next span if they are set, else random ones."""

    def __init__(self) -> None:
        self.next: tuple[int, int] | None = None

    def generate_trace_id(self) -> int:
        return super().generate_trace_id() if self.next is None else self.next[0]

    def generate_span_id(self) -> int:
        if self.next is None:
            return super().generate_span_id()
        (_, span_id), self.next = self.next, None
        return span_id


def _ns(wall_s: float) -> int:
    return int(wall_s * 1e9)

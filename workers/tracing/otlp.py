"""Send one trace for each request to an OpenTelemetry collector. Needs the packages of requirements-tracing.txt.

No context is passed between processes: a trace's id, and that of its span `request`, are hashes of the request's id.
The process that sees the request end sends `request`. Its children are `admit`, then for each round `wait` (between two
steps of the verifier), `verify`, `draft` and `fuse`.

Spans wait in a bounded queue for a thread of the SDK, so a slow or absent collector delays nothing.
"""

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import sha256

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags, set_span_in_context

from app.messages import FinishReason
from app.verifier.metrics import RequestProgress
from workers.tracing.spans import WorkSpan

MOST_WAITING = 16_384  # spans
MOST_ROUNDS = 4096  # requests whose rounds are counted
SEND_EVERY_MS = 1000
PATIENCE_S = 2.0  # with a collector, retries included; a process that ends waits for it as long
SHORTEST_WAIT_S = 0.0001
Facts = dict[str, str | int | float | list[str]]


class Collector:
    """`part` of the requests is traced. Implements `Sink`."""

    def __init__(self, url: str, part: float, node: str, model: str) -> None:
        self._ids = _Ids()
        resource = Resource.create({"service.name": "paceline", "service.instance.id": node})
        # A sampler of the environment would decide in each process anew; `is_traced` decides for all of them.
        self._provider = TracerProvider(resource=resource, id_generator=self._ids, sampler=ALWAYS_ON)
        exporter = OTLPSpanExporter(endpoint=f"{url.rstrip('/')}/v1/traces", timeout=PATIENCE_S)
        self._provider.add_span_processor(
            BatchSpanProcessor(exporter, max_queue_size=MOST_WAITING, schedule_delay_millis=SEND_EVERY_MS)
        )
        self._tracer = self._provider.get_tracer("paceline")
        self._part, self._node, self._model = part, node, model
        self._rounds: OrderedDict[str, tuple[int, float]] = OrderedDict()  # by request: steps, end of the last one

    def write(self, spans: Sequence[WorkSpan], progress: Mapping[str, RequestProgress]) -> None:
        for request_id, one in progress.items():
            if one.started_s is not None:  # it began here; else it had waited for another verifier
                self._rounds.setdefault(request_id, (0, one.created_s))
        for span in spans:
            for request_id in span.request_ids:
                if is_traced(request_id, self._part):
                    self._send_work(request_id, span)
        for request_id, one in progress.items():
            if one.reason is not None and is_traced(request_id, self._part):
                self._send_request(request_id, one)

    def close(self) -> None:
        self._provider.shutdown()

    def _send_work(self, request_id: str, span: WorkSpan) -> None:
        facts: Facts = {"paceline.node": self._node, "paceline.batch.sequences": len(span.request_ids)}
        if span.name == "verify":
            number, since_s = self._round(request_id, span)
            facts["paceline.round"] = number
            if span.start_s - since_s > SHORTEST_WAIT_S:
                self._send_child(request_id, "wait", since_s, span.start_s, {"paceline.round": number})
        self._send_child(request_id, span.name, span.start_s, span.end_s, facts)

    def _send_child(self, request_id: str, name: str, start_s: float, end_s: float, facts: Facts) -> None:
        trace_id, root_id = ids(request_id)
        root = SpanContext(trace_id, root_id, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
        self._send(name, set_span_in_context(NonRecordingSpan(root)), SpanKind.INTERNAL, start_s, end_s, facts)

    def _send_request(self, request_id: str, progress: RequestProgress) -> None:
        is_done = progress.reason in (FinishReason.STOP, FinishReason.LENGTH)
        end_s = progress.stats.last_token_s if is_done else None
        facts: Facts = {
            "paceline.finish_reason": str(progress.reason),
            "paceline.tokens": progress.tokens,
            "paceline.rounds": progress.stats.rounds,
            "paceline.drafted": progress.stats.drafted,
            "paceline.accepted": progress.stats.accepted,
            **_gen_ai(progress, self._model),
        }
        self._ids.next = ids(request_id)
        self._send("request", Context(), SpanKind.SERVER, progress.created_s, end_s or time.time(), facts)

    def _send(self, name: str, context: Context, kind: SpanKind, start_s: float, end_s: float, facts: Facts) -> None:
        span = self._tracer.start_span(name, context, kind, facts, start_time=_ns(start_s))
        span.end(_ns(max(start_s, end_s)))

    def _round(self, request_id: str, span: WorkSpan) -> tuple[int, float]:
        number, since_s = self._rounds.get(request_id, (0, span.start_s))
        self._rounds[request_id] = number + 1, span.end_s
        self._rounds.move_to_end(request_id)
        while len(self._rounds) > MOST_ROUNDS:
            self._rounds.popitem(last=False)
        return number + 1, since_s


def _gen_ai(progress: RequestProgress, model: str) -> Facts:
    """Name a request's facts by OpenTelemetry's semantic conventions for generative AI."""
    record = progress.record
    sampling = record.sampling
    facts: Facts = {
        "gen_ai.operation.name": "text_completion",  # a record is a prompt's tokens, of chats too
        "gen_ai.provider.name": "paceline",
        "gen_ai.request.model": model,
        "gen_ai.request.max_tokens": record.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.frequency_penalty": sampling.frequency_penalty,
        "gen_ai.request.presence_penalty": sampling.presence_penalty,
        "gen_ai.response.id": record.id,
        "gen_ai.response.model": model,
        "gen_ai.response.finish_reasons": [str(progress.reason)],
        "gen_ai.usage.input_tokens": len(record.prompt_ids),
        "gen_ai.usage.cache_read.input_tokens": progress.stats.reused,
        "gen_ai.usage.output_tokens": progress.tokens,
    }
    if sampling.top_k:
        facts["gen_ai.request.top_k"] = sampling.top_k
    if sampling.seed is not None:
        facts["gen_ai.request.seed"] = sampling.seed
    return facts


def ids(request_id: str) -> tuple[int, int]:
    digest = sha256(request_id.encode()).digest()
    return int.from_bytes(digest[:16]), int.from_bytes(digest[16:24])


def is_traced(request_id: str, part: float) -> bool:
    """Return whether the request is traced: the same in every process."""
    return int.from_bytes(sha256(request_id.encode()).digest()[24:]) < part * 2**64


class _Ids(RandomIdGenerator):
    """Use `next` for the next span's ids if set, else random ones."""

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

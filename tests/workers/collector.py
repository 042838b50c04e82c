"""Run a collector of OpenTelemetry's traces: an HTTP server that decodes the protobuf messages."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

Span = dict[str, Any]


@contextmanager
def collecting() -> Iterator[tuple[str, list[Span]]]:
    """Run the collector for the block; give its URL and what it has received."""
    spans: list[Span] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.path == "/v1/traces":
                spans.extend(_spans(ExportTraceServiceRequest.FromString(body)))
            self.send_response(200 if self.path == "/v1/traces" else 404)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", spans
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _spans(request: ExportTraceServiceRequest) -> Iterator[Span]:
    for resource in request.resource_spans:
        about = {one.key: one.value.string_value for one in resource.resource.attributes}
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield {
                    "node": about["service.instance.id"],
                    "service": about["service.name"],
                    "trace": span.trace_id.hex(),
                    "id": span.span_id.hex(),
                    "parent": span.parent_span_id.hex(),
                    "name": span.name,
                    "start_s": span.start_time_unix_nano / 1e9,
                    "end_s": span.end_time_unix_nano / 1e9,
                    **{one.key: _value(one.value) for one in span.attributes},
                }


def _value(value: Any) -> Any:
    found = getattr(value, value.WhichOneof("value"))
    return [*map(_value, found.values)] if hasattr(found, "values") else found

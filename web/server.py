"""Serve the application over HTTP with waitress: one process, a thread a request."""

import resource
import socket
import time
from collections.abc import Callable, Iterable
from threading import Event as Flag
from typing import TYPE_CHECKING, Any

import waitress
from flask import Flask
from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser, ParsingError, get_header_lines

from web.api.http_io import WRITER, Writer
from web.factory import MAX_BODY_BYTES

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

SPARE_THREADS = 32  # beside those of streams: for pages, health, cancels, new requests
FILES_A_THREAD = 4  # its client's and Redis' connection, and as many clients that wait
LOOK_UP_S = 0.5  # seconds until a flag is seen
MOST_UNSENT = 2**18  # bytes kept for a client; beyond them only its own thread, which may wait, writes to it
NOTICE_S = 5.0  # from the first 503 of /healthz to the closed port: a proxy checks every second (deploy/haproxy.cfg)


class WebServer:
    """Bind a port (0: any free one) and serve it; raises OSError if it is taken."""

    def __init__(self, app: Flask, host: str, port: int, max_streams: int) -> None:
        threads = max_streams + SPARE_THREADS
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family)
        allow_files(FILES_A_THREAD * threads)
        self.port = int(listener.getsockname()[1])
        self._sockets: dict[int, Any] = {}
        self._server = waitress.create_server(
            with_writer(app),
            map=self._sockets,
            sockets=[listener],
            threads=threads,
            connection_limit=2 * threads,
            asyncore_use_poll=True,  # select() ends at 1,024 descriptors
            channel_request_lookahead=1,  # so that a waiting request can see its client disconnect
            max_request_body_size=4
            * MAX_BODY_BYTES,  # up to this Flask refuses with JSON, beyond it waitress with plain text
            ident="paceline",
        )
        self._server.channel_class = _Channel

    def serve(self, stopping: Flag, leaving: Flag | None = None, drain_s: float = 0.0) -> None:
        """Serve until `stopping`, which ends streams; then wait up to five seconds for requests.

        At `leaving`, first finish the running calls, for up to `drain_s`, and take new ones for NOTICE_S, in which a
        proxy notices /healthz.
        """
        leaving = leaving or stopping
        try:
            self._loop(lambda: not leaving.is_set() and not stopping.is_set())
            if drain_s:
                self._drain(stopping, drain_s)
        finally:
            stopping.set()
            self._server.task_dispatcher.shutdown()
            self._server.asyncore.close_all(self._sockets)

    def _drain(self, stopping: Flag, drain_s: float) -> None:
        leaving_s = time.monotonic()
        self._loop(lambda: not stopping.is_set() and time.monotonic() - leaving_s < min(NOTICE_S, drain_s))
        self._server.asyncore.dispatcher.close(self._server)  # the listener alone
        self._loop(lambda: not stopping.is_set() and time.monotonic() - leaving_s < drain_s and self._is_busy())

    def _loop(self, goes_on: Callable[[], bool]) -> None:
        while goes_on():
            self._server.asyncore.loop(timeout=LOOK_UP_S, use_poll=True, map=self._sockets, count=1)

    def _is_busy(self) -> bool:
        channels = [*self._server.active_channels.values()]
        return any(one.request or one.requests or one.total_outbufs_len for one in channels)


class RequestParser(HTTPRequestParser):
    path = ""  # waitress logs it when a client has left, even of a request without a sound first line

    def parse_header(self, header_plus: bytes) -> None:
        """Refuse a request whose end another program may see elsewhere (RFC 9112, 6.1); that closes the connection."""
        super().parse_header(header_plus)
        is_old = "TRANSFER_ENCODING" in self.headers  # of HTTP/1.1 that header is taken away when it is read
        if is_old or (self.chunked and "CONTENT_LENGTH" in self.headers):
            raise ParsingError("Transfer-Encoding goes neither with Content-Length nor with HTTP/1.0")
        lines = (line.lower() for line in (get_header_lines(header_plus) if self.chunked else ()))
        if sum(line.count(b"chunked") for line in lines if line.startswith(b"transfer-encoding:")) > 1:
            raise ParsingError("Transfer-Encoding must name chunked once")


class _Channel(HTTPChannel):
    parser_class = RequestParser


def with_writer(app: "WSGIApplication") -> "WSGIApplication":
    """Put the response's `Writer` (WSGI's `write`) into each call's environment, for `web.api.http_io`.

    Waitress sends at once what the client's socket takes and keeps the rest; it waits only if very much is kept.
    """

    def serve(call: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        def start(status: str, headers: list[tuple[str, str]], error: Any = None) -> Callable[[bytes], object]:
            write: Any = start_response(status, headers, error)
            channel = write.__self__.channel
            call[WRITER] = Writer(write, lambda: channel.connected and channel.total_outbufs_len <= MOST_UNSENT)
            return write

        return app(call, start)

    return serve


def allow_files(most: int) -> None:
    """Raise the soft limit of open files to `most`, up to the hard one: 1,024 are too few for 500 streams."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))

"""The HTTP server around the application: one process, a thread a request, until it is told to stop.

Waitress writes to the socket as soon as output is made, so streams are not held back. Its threads are made
at the start; they cost little while they wait, and a stream spends its life waiting.
"""

import socket
from threading import Event as Flag
from typing import Any

import waitress
from flask import Flask

from web.factory import MAX_BODY_BYTES

SPARE_THREADS = 32  # beside a stream for each active request: for pages, health, cancels, second readers
LOOK_UP_S = 0.5  # how soon a stop is noticed


class WebServer:
    """Bound to its port (0: any free one) from construction on; raises OSError when it is taken."""

    def __init__(self, app: Flask, host: str, port: int, max_streams: int) -> None:
        threads = max_streams + SPARE_THREADS
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family)
        self.port = int(listener.getsockname()[1])
        self._sockets: dict[int, Any] = {}
        self._server = waitress.create_server(
            app,
            map=self._sockets,
            sockets=[listener],
            threads=threads,
            connection_limit=2 * threads,
            asyncore_use_poll=True,  # select() ends at 1,024 descriptors
            channel_request_lookahead=1,  # tells a waiting request that its client has gone
            max_request_body_size=4 * MAX_BODY_BYTES,  # to here Flask refuses in JSON, beyond it waitress in a word
            ident="paceline",
        )

    def serve(self, stopping: Flag) -> None:
        """Serve until `stopping`; then wait up to five seconds for requests; streams end by the flag."""
        try:
            while not stopping.is_set():
                self._server.asyncore.loop(timeout=LOOK_UP_S, use_poll=True, map=self._sockets, count=1)
        finally:
            stopping.set()
            self._server.task_dispatcher.shutdown()
            self._server.asyncore.close_all(self._sockets)

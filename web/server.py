"""The HTTP server around the application: one process, a thread a request, until it is told to stop.

Waitress writes to the socket as soon as output is made, so streams are not held back. Its threads are made
at the start; they cost little while they wait, and a stream spends its life waiting.
"""

import resource
import socket
import time
from collections.abc import Callable
from threading import Event as Flag
from typing import Any

import waitress
from flask import Flask

from web.factory import MAX_BODY_BYTES

SPARE_THREADS = 32  # beside those of streams: for pages, health, cancels, new requests
FILES_A_THREAD = 4  # its client's and Redis' connection, and as many clients that wait
LOOK_UP_S = 0.5  # how soon a stop is noticed
NOTICE_S = 5.0  # from saying that it leaves to closing its port: a proxy looks every second (deploy/haproxy.cfg)


class WebServer:
    """Bound to its port (0: any free one) from construction on; raises OSError when it is taken."""

    def __init__(self, app: Flask, host: str, port: int, max_streams: int) -> None:
        threads = max_streams + SPARE_THREADS
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family)
        allow_files(FILES_A_THREAD * threads)
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

    def serve(self, stopping: Flag, leaving: Flag | None = None, drain_s: float = 0.0) -> None:
        """Serve until `stopping`; then wait up to five seconds for requests; streams end by the flag.

        Told by `leaving`, first see the calls under way to their ends, for up to `drain_s`, and take no new ones after
        NOTICE_S, in which a proxy has learned from /healthz to send none. Whoever asks in between is served.
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
        told_s = time.monotonic()
        self._loop(lambda: not stopping.is_set() and time.monotonic() - told_s < min(NOTICE_S, drain_s))
        self._server.asyncore.dispatcher.close(self._server)  # the listener alone
        self._loop(lambda: not stopping.is_set() and time.monotonic() - told_s < drain_s and self._is_busy())

    def _loop(self, goes_on: Callable[[], bool]) -> None:
        while goes_on():
            self._server.asyncore.loop(timeout=LOOK_UP_S, use_poll=True, map=self._sockets, count=1)

    def _is_busy(self) -> bool:
        """Is a call under way, or its answer not yet sent?"""
        channels = [*self._server.active_channels.values()]
        return any(one.request or one.requests or one.total_outbufs_len for one in channels)


def allow_files(most: int) -> None:
    """Let this process have so many files open, as far as the system does: the usual 1,024 are some 500 streams."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))

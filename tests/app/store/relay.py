"""Relay bytes to a server as they come, and its replies back only while that is allowed."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Self


class Relay:
    """A relay on a free port for connections to `port`; `cut`, or the block's end, cuts them all."""

    def __init__(self, port: int) -> None:
        self._to = ("127.0.0.1", port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._may_answer = threading.Event()
        self._may_answer.set()

    @property
    def port(self) -> int:
        """Return the port that the relay listens on."""
        return int(self._listening.getsockname()[1])

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.close()
        self.cut()

    def hold(self) -> None:
        """Keep the server's replies from now on."""
        self._may_answer.clear()

    def mute(self) -> None:
        """Never let the server answer again on the connections that there are; new ones work."""
        self._may_answer.clear()
        self._may_answer = threading.Event()
        self._may_answer.set()

    def let_go(self) -> None:
        """Pass on the kept replies, late as they are."""
        self._may_answer.set()

    def cut(self) -> None:
        """End all connections; kept replies are lost. New connections work."""
        cut, self._open = self._open, []
        for end in cut:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._may_answer.set()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                far = socket.create_connection(self._to)
                self._open += [near, far]
                self._pass_on(near, far, lambda: None)
                self._pass_on(far, near, self._may_answer.wait)

    def _pass_on(self, of: socket.socket, to: socket.socket, wait: Callable[[], object]) -> None:
        def run() -> None:
            with suppress(OSError):
                while data := of.recv(65536):
                    wait()
                    to.sendall(data)
            with suppress(OSError):
                to.shutdown(socket.SHUT_WR)

        threading.Thread(target=run, daemon=True).start()

"""Test the forwarder that holds bytes back: every byte, in order, both ways, no sooner than a hop later."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from lab.deployed.delay import address, serve

HOP_S = 0.05
PIECES = [bytes([65 + i]) * (1 + 40_000 * (i % 3)) for i in range(12)]


@pytest.fixture
def delayed() -> Iterator[tuple[str, int]]:
    """Yield the address of a forwarder to a server that sends back what it gets."""

    def echo() -> None:
        connection, _ = far.accept()
        with connection:
            while data := connection.recv(1 << 16):
                connection.sendall(data)

    with socket.create_server(("127.0.0.1", 0)) as far, socket.create_server(("127.0.0.1", 0)) as near:
        threading.Thread(target=echo, daemon=True).start()
        threading.Thread(target=serve, args=(near, far.getsockname(), HOP_S), daemon=True).start()
        yield near.getsockname()


def test_bytes_keep_their_order_and_the_end_comes_through(delayed: tuple[str, int]) -> None:
    with socket.create_connection(delayed) as connection:
        threading.Thread(target=_send, args=(connection,), daemon=True).start()
        back = b""
        while data := connection.recv(1 << 16):
            back += data
    assert back == b"".join(PIECES)


def test_a_byte_takes_a_hop_each_way(delayed: tuple[str, int]) -> None:
    with socket.create_connection(delayed) as connection:
        connection.sendall(b"warm")
        connection.recv(4)
        started = time.monotonic()
        for _ in range(4):
            connection.sendall(b"x")
            time.sleep(HOP_S / 10)
        back = b""
        while len(back) < 4:
            back += connection.recv(4)
    assert time.monotonic() - started >= 2 * HOP_S, "the last byte has been held back twice"


def test_an_address_is_read() -> None:
    assert address("192.0.2.1:6379") == ("192.0.2.1", 6379)


def _send(connection: socket.socket) -> None:
    for piece in PIECES:
        connection.sendall(piece)
    connection.shutdown(socket.SHUT_WR)

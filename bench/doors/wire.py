"""Send bytes to a server and read what it answers; send many at once."""

import socket
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from bench.doors.cases import Case

ANSWER_S = 30.0
CLOSED, SILENT = 0, -1  # instead of a status: no answer but the end of the connection, none within ANSWER_S
AT_ONCE = 8


def exchange(port: int, sent: bytes, ends: bool = False, limit_s: float = ANSWER_S) -> bytes | None:
    """Return all that comes until the server closes the connection; None if it says nothing in time.

    `ends`: close our half after what is sent, for a server that waits for more.
    """
    until_s, received = time.monotonic() + limit_s, b""
    with socket.create_connection(("127.0.0.1", port), limit_s) as connection:
        with suppress(OSError):  # refused before it is read to its end
            connection.sendall(sent)
            if ends:
                connection.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            try:
                while part := connection.recv(2**16):
                    received += part
                    connection.settimeout(max(0.01, until_s - time.monotonic()))
            except TimeoutError:
                return received or None
    return received


def status_of(answer: bytes | None) -> int:
    """Read the status of an answer; the whole of it, whatever follows."""
    if answer is None:
        return SILENT
    first = answer.split(b"\r\n", 1)[0].split(b" ")
    return int(first[1]) if len(first) > 1 and first[0].startswith(b"HTTP/") and first[1].isdigit() else CLOSED


def body_of(answer: bytes | None) -> bytes:
    """Return what follows the head."""
    return (answer or b"").partition(b"\r\n\r\n")[2]


def at_once(
    port: int, cases: Iterable[Case], threads: int = AT_ONCE, ends: bool = False
) -> list[tuple[str, bytes | None]]:
    """Send all, some at a time; return (name, answer)."""
    with ThreadPoolExecutor(threads) as pool:
        return [*pool.map(lambda case: (case[0], exchange(port, case[1], ends)), cases)]


def judged(
    answers: Iterable[tuple[str, bytes | None]], excused: Iterable[tuple[str, int]]
) -> tuple[Counter[int], list[str]]:
    """Count the statuses; list the answers that break a promise: a 5xx, none, or two to one request."""
    statuses, broken = Counter[int](), list[str]()
    for name, answer in answers:
        status = status_of(answer)
        statuses[status] += 1
        if (status >= 500 and (name, status) not in excused) or status == SILENT:
            broken.append(f"{name}: {'no answer' if status == SILENT else status}")
        if (answer or b"").count(b"HTTP/1.1 ") > 1:
            broken.append(f"{name}: what follows was taken for a request of its own")
    return statuses, broken

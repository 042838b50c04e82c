"""Forward TCP connections and hold each byte back: `python -m lab.deployed.delay --listen A:P --to A:P --hop-ms MS`.

For kernels without `netem`. Bytes keep their order; each goes on `hop-ms` after it came, both ways.
Two threads a direction: one receives and stamps, one waits and sends. What the threads take adds
about a tenth of a millisecond; `measured_ms` tells.
"""

import argparse
import socket
import statistics
import sys
import threading
import time
from queue import SimpleQueue

Address = tuple[str, int]
PIECE = 1 << 16  # bytes
CHUNK = tuple[float, bytes]  # when it goes on (monotonic seconds), and what; b"" at the end
PINGS = 200
PING, PONG = b"PING\r\n", 512  # Redis answers it, with or without a password


def main(argv: list[str] | None = None) -> int:
    """Forward until the process is stopped."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--listen", type=address, required=True)
    parser.add_argument("--to", type=address, required=True)
    parser.add_argument("--hop-ms", type=float, required=True)
    args = parser.parse_args(argv)
    sys.setswitchinterval(1e-4)  # a thread that has waited long enough is not to wait for another one
    with socket.create_server(args.listen, backlog=256) as server:
        serve(server, args.to, 1e-3 * args.hop_ms)
    return 0


def address(text: str) -> Address:
    """Read HOST:PORT."""
    host, _, port = text.rpartition(":")
    return host, int(port)


def serve(server: socket.socket, to: Address, hop_s: float) -> None:
    """Forward every connection of `server` to the address; return when `server` is closed."""
    while True:
        try:
            near, _ = server.accept()
        except OSError:
            return
        far = socket.create_connection(to)
        for one in (near, far):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for source, sink in ((near, far), (far, near)):
            _forward(source, sink, hop_s)


def measured_ms(to: Address) -> float:
    """Return the median milliseconds of half a round trip to the Redis there."""
    taken = []
    with socket.create_connection(to) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(PINGS):
            started = time.perf_counter()
            connection.sendall(PING)
            connection.recv(PONG)
            taken.append(time.perf_counter() - started)
    return 1e3 * statistics.median(taken) / 2.0


def _forward(source: socket.socket, sink: socket.socket, hop_s: float) -> None:
    held: SimpleQueue[CHUNK] = SimpleQueue()
    threading.Thread(target=_receive, args=(source, held, hop_s), daemon=True).start()
    threading.Thread(target=_send, args=(held, sink), daemon=True).start()


def _receive(source: socket.socket, held: "SimpleQueue[CHUNK]", hop_s: float) -> None:
    data = b"."
    while data:
        try:
            data = source.recv(PIECE)
        except OSError:
            data = b""
        held.put((time.monotonic() + hop_s, data))


def _send(held: "SimpleQueue[CHUNK]", sink: socket.socket) -> None:
    while True:
        due_s, data = held.get()
        time.sleep(max(0.0, due_s - time.monotonic()))
        try:
            if not data:
                sink.shutdown(socket.SHUT_WR)
                return
            sink.sendall(data)
        except OSError:
            return


if __name__ == "__main__":
    sys.exit(main())

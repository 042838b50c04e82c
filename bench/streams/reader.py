"""Read the event streams of many requests in one process, as cheaply as a client can.

    python -m bench.streams.reader HOST:PORT

Request ids come in as a line of JSON on stdin; "open" goes out once every stream has begun, and when all have ended a
JSON object: frames, those that were wrong, and the times from commit to byte. While the streams run it only notes when
bytes came; they are parsed at the end, so that it takes little time from the processes that are measured.
"""

import json
import selectors
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from bench.streams.commits import token_at

CHUNK = 2**16


@dataclass(slots=True)
class Stream:
    """A stream's bytes so far, and when the bytes up to each length had come."""

    connection: socket.socket
    data: bytearray = field(default_factory=bytearray)
    came: list[tuple[int, float]] = field(default_factory=list)  # length, wall clock


def main() -> int:
    """Read all streams to their ends; print the figures."""
    host, _, port = sys.argv[1].partition(":")
    ids = json.loads(sys.stdin.readline())
    selector = selectors.DefaultSelector()
    streams = [_opened(host, int(port), one) for one in ids]
    for stream in streams:
        selector.register(stream.connection, selectors.EVENT_READ, stream)
    waiting = {id(stream) for stream in streams}
    while selector.get_map():
        for key, _ in selector.select():
            stream = key.data
            chunk = stream.connection.recv(CHUNK)
            stream.data += chunk
            stream.came.append((len(stream.data), time.time()))
            if not chunk:
                selector.unregister(stream.connection)
                stream.connection.close()
            if waiting and b": request" in stream.data:
                waiting.discard(id(stream))
                if not waiting:
                    print("open", flush=True)
    print(json.dumps(report(streams)))
    return 0


def _opened(host: str, port: int, request_id: str) -> Stream:
    connection = socket.create_connection((host, port))
    connection.sendall(f"GET /api/requests/{request_id}/stream HTTP/1.0\r\nHost: {host}:{port}\r\n\r\n".encode())
    return Stream(connection)


def report(streams: list[Stream]) -> dict[str, Any]:
    """Check every frame of every stream; return counts and the spread of the times, milliseconds."""
    took: list[float] = []
    frames = wrong = 0
    for stream in streams:
        length, chunks, at = 0, iter(stream.came), (0, 0.0)
        tokens, is_whole = 0, False
        head, _, body = bytes(stream.data).partition(b"\r\n\r\n")
        length = len(head) + 4
        for block in body.split(b"\n\n"):
            length += len(block) + 2
            fields = dict(part.split(": ", 1) for part in block.decode().split("\n") if ": " in part)
            if fields.get("event") == "tokens":
                data = json.loads(fields["data"])
                known = [token_at(tokens + i) for i in range(len(data["tokens"]))]
                wrong += data["offset"] != tokens or data["tokens"] != known
                tokens += len(known)
                frames += 1
                while at[0] < length and (after := next(chunks, None)) is not None:
                    at = after
                took.append(1e3 * (at[1] - data["stats"]["last_token_s"]))
            elif fields.get("event") == "end":
                is_whole = len(json.loads(fields["data"])["token_ids"]) == tokens
        wrong += not is_whole
    took.sort()
    spread = {name: round(took[int(part * (len(took) - 1))], 2) for name, part in QUANTILES.items()} if took else {}
    return {"frames": frames, "wrong": wrong, "ms from commit to client": spread}


QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "highest": 1.0}

if __name__ == "__main__":
    sys.exit(main())

"""Test the readers of `bench streams`: every flaw of a stream is found."""

import asyncio
import json

import pytest

from bench.clients.stream_clients import Fleet, Read

TOKENS = [5, 6, 7]


def event(kind: str, **data: object) -> str:
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n"


FIRST = "retry: 1000\n: request r\n\n" + event("tokens", offset=0, tokens=[5, 6])
END = event("end", token_ids=TOKENS)
GOOD = FIRST + ": still here\n\n" + event("tokens", offset=2, tokens=[7]) + END
BAD = {
    "a gap": FIRST + event("tokens", offset=3, tokens=[8]) + event("end", token_ids=[5, 6, 7, 8]),
    "twice": FIRST + event("tokens", offset=1, tokens=[6, 7]) + END,
    "misplaced": FIRST + event("tokens", offset=3, tokens=[7]) + END,
    "too few": FIRST + END,
    "no end": FIRST,
    "an error": FIRST + event("error", error={"message": "away"}),
    "other tokens": event("tokens", offset=0, tokens=[5, 6, 8]) + event("end", token_ids=[5, 6, 8]),
    "no stream": "",
}


def reads(second: str) -> list[Read]:
    """Read one request twice; the server sends `second` to the reader that follows it."""
    return asyncio.run(_reads(second))


async def _reads(second: str) -> list[Read]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        text = GOOD if head.startswith(b"POST") else second
        status = "200 OK" if text else "429 Too Many Requests"
        writer.write(f"HTTP/1.1 {status}\r\nX-Request-Id: r\r\n\r\n{text}".encode())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        fleet = Fleet(f"http://127.0.0.1:{port}", streams=2, readers=2, max_tokens=3)
        running = asyncio.create_task(fleet.run())
        await fleet.end()  # nothing runs yet: each stream is opened once
        await running
        return fleet.reads


def test_a_whole_stream_is_whole() -> None:
    found = reads(GOOD)
    assert [(one.tokens, one.heartbeats, one.error) for one in found] == [(3, 1, None)] * 2


@pytest.mark.parametrize("name", BAD)
def test_every_flaw_is_an_error(name: str) -> None:
    first, second = reads(BAD[name])
    assert first.error is None and second.error is not None

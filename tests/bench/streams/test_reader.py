"""Test that the reader of paced streams notices what is missing, twice or another, and when it came."""

import json
import socket

import pytest

from bench.streams.commits import TOKENS, token_at
from bench.streams.reader import Stream, report

HEAD = b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\nretry: 1000\n: request r\n\n"


def frame(offset: int, written_s: float = 100.0) -> bytes:
    tokens = [token_at(offset + i) for i in range(TOKENS)]
    data = {"offset": offset, "tokens": tokens, "stats": {"last_token_s": written_s}}
    return f"id: {offset + TOKENS}\nevent: tokens\ndata: {json.dumps(data)}\n\n".encode()


def end(tokens: int) -> bytes:
    return f"event: end\ndata: {json.dumps({'token_ids': [0] * tokens})}\n\n".encode()


def read(*chunks: tuple[bytes, float]) -> Stream:
    with socket.socket() as unused:
        stream = Stream(unused)
    for chunk, at_s in chunks:
        stream.data += chunk
        stream.came.append((len(stream.data), at_s))
    return stream


def test_a_frame_came_when_its_last_byte_did() -> None:
    first, second = frame(0), frame(TOKENS, 100.2)
    stream = read((HEAD, 99.0), (first[:20], 100.1), (first[20:] + second[:9], 100.3), (second[9:] + end(4), 100.5))
    found = report([stream])
    assert (found["frames"], found["wrong"]) == (2, 0)
    assert found["ms from commit to client"] == pytest.approx({"p50": 300, "p95": 300, "p99": 300, "highest": 300})


@pytest.mark.parametrize(
    "body",
    [
        frame(TOKENS) + end(2 * TOKENS),
        frame(0) + frame(0) + end(TOKENS),
        frame(0).replace(b'"tokens": [', b'"tokens": [1') + end(TOKENS),
        frame(0) + end(2 * TOKENS),
        frame(0),
    ],
)
def test_what_is_not_whole_is_wrong(body: bytes) -> None:
    assert report([read((HEAD + body, 101.0))])["wrong"]

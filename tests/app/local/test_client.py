"""Test the command line's client against a real HTTP server that misbehaves."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from pydantic import SecretStr

from app.errors import InvalidRequest, PacelineError
from app.local.client import generate
from app.request import GenerateRequest

RESULT: dict[str, Any] = {
    "id": "r1",
    "status": "done",
    "text": "one two",
    "token_ids": [1, 2],
    "finish_reason": "stop",
    "usage": {"prompt_tokens": 1, "completion_tokens": 2},
    "timing": {"ttft_s": 0.1, "total_s": 0.2},
    "speculation": {"rounds": 2, "drafted": 0, "accepted": 0, "mean_accepted_length": 1.0, "by_drafter": {}},
}


class Api(BaseHTTPRequestHandler):
    """Stream the first token and break off; resume at the client's offset. Refuse a prompt "bad"."""

    rest = b'event: tokens\ndata: {"offset": 1, "tok'  # broken off in the middle of a frame
    head: bytes | None = None  # the whole first answer to a client that resumes
    paths: list[str] = []
    bodies: list[dict[str, Any]] = []
    shown: list[str | None] = []  # keys

    def do_POST(self) -> None:
        self.shown.append(self.headers["Authorization"])
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.bodies.append(body)
        if body["prompt"] == "bad":
            self._answer(400, "application/json")
            self.wfile.write(b'{"error": {"message": "prompt: is bad", "field": "prompt"}}')
            return
        self._answer(200, "text/event-stream")
        self._frame("tokens", {"offset": 0, "tokens": [1], "proposers": ["target"], "text": "one"})
        self.wfile.write(self.rest)

    def do_GET(self) -> None:
        self.shown.append(self.headers["Authorization"])
        self.paths.append(self.path)
        if self.head is not None and len(self.paths) == 1:
            self.wfile.write(self.head)
            return
        self._answer(200, "text/event-stream")
        if len(self.paths) == 1:
            self._frame("error", {"error": {"message": "the store does not answer"}})
            return
        self.wfile.write(b": still here\n\n")
        self._frame("tokens", {"offset": 1, "tokens": [2], "proposers": ["target"], "text": " two"})
        self._frame("end", RESULT)

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test's output clean."""

    def _answer(self, status: int, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("X-Request-Id", "r1")
        self.end_headers()

    def _frame(self, kind: str, data: dict[str, Any]) -> None:
        self.wfile.write(f"event: {kind}\ndata: {json.dumps(data)}\n\n".encode())


@pytest.fixture
def url() -> Iterator[str]:
    Api.paths, Api.bodies, Api.shown = [], [], []
    with ThreadingHTTPServer(("127.0.0.1", 0), Api) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_broken_stream_is_resumed_at_its_offset(url: str) -> None:
    pieces: list[str] = []
    result = generate(url, GenerateRequest(prompt="p"), pieces.append, SecretStr("pk-1"))
    assert Api.shown == ["Bearer pk-1"] * 3
    assert pieces == ["one", " two"] and "".join(pieces) == result.text
    assert Api.paths == ["/api/requests/r1/stream?offset=1"] * 2


@pytest.mark.parametrize(
    "broken",
    [
        {"rest": 'event: end\ndata: {"text": "na\u00efve'.encode()[:-3]},  # within a character
        {"rest": b""},
        {"head": b"HTT"},
        {"head": b"HTTP/1.0 two hundred\r\n\r\n"},
        {"head": b""},
    ],
)
def test_stream_may_break_off_anywhere(url: str, broken: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in broken.items():
        monkeypatch.setattr(Api, name, value)
    pieces: list[str] = []
    assert generate(url, GenerateRequest(prompt="p"), pieces.append).text == "".join(pieces)
    assert Api.paths == ["/api/requests/r1/stream?offset=1"] * 2


def test_request_is_sent_whole(url: str) -> None:
    request = GenerateRequest(prompt="p", seed=7, top_p=0.5, speculation={"enabled": False})
    generate(url, request, None)
    sent = {name: value for name, value in Api.bodies[0].items() if name != "stream"}
    assert GenerateRequest.model_validate(sent) == request


def test_refused_input_keeps_the_servers_words(url: str) -> None:
    with pytest.raises(InvalidRequest, match="^prompt: is bad$"):
        generate(url, GenerateRequest(prompt="bad"), None)


def test_dead_server_is_one_sentence(free_port: int) -> None:
    with pytest.raises(PacelineError, match="does not answer"):
        generate(f"http://127.0.0.1:{free_port}", GenerateRequest(prompt="p"), None)

"""Test the server's limit of open files, by which threads streams are written, and requests of two readings."""

import http.client
import json
import resource
import socket
import threading
from contextlib import closing

import pytest
from waitress.adjustments import Adjustments
from waitress.task import WSGITask

from app.engine.text.tokenizer import Tokenizer
from tests.web.conftest import TEXT, Server
from tests.web.doubles import ScriptedVerifier
from tests.web.events import parse_text
from web.server import RequestParser, allow_files
from workers.deployment import Deployment


def test_the_open_file_limit_rises_and_never_falls() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        allow_files(512)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (512, before[1])
        allow_files(300)  # never fewer
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 512
        allow_files(2**40)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] in (before[1], 2**40)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("most_unsent", [-1, 2**18])
def test_events_are_written_by_the_feeds_thread_unless_the_client_lags(
    server: Server, deployment: Deployment, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, most_unsent: int
) -> None:
    """Of a client that lags nothing may wait but its own thread."""
    monkeypatch.setattr("web.server.MOST_UNSENT", most_unsent)
    wrote: dict[str, list[bytes]] = {}
    write = WSGITask.write

    def recorded(self: WSGITask, data: bytes) -> None:
        wrote.setdefault(threading.current_thread().name, []).append(data)
        write(self, data)

    monkeypatch.setattr(WSGITask, "write", recorded)
    whole = [*tokenizer.encode(TEXT), tokenizer.eos_ids[0]]
    with ScriptedVerifier(deployment, whole, pause_s=0.05):
        for path, body in (
            ("/api/generate", {"prompt": "Hi", "stream": True}),
            (
                "/v1/completions",
                {"model": deployment.settings.model_name, "prompt": "Hi", "stream": True, "n": 2, "max_tokens": 500},
            ),
        ):
            wrote.clear()
            with closing(http.client.HTTPConnection(server.host, server.port, timeout=20)) as connection:
                connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
                text = connection.getresponse().read().decode()
            if path == "/api/generate":
                assert parse_text(text)[-1].data["text"] == TEXT
            else:
                parts = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
                for place in (0, 1):
                    texts = [one["text"] for part in parts for one in part["choices"] if one["index"] == place]
                    assert "".join(texts) == TEXT
            assert (len(wrote.pop("events", [])) > 3) == (most_unsent > 0)
            assert wrote, "the head, and the end"


@pytest.mark.parametrize("end", ["1", "0\r\nConnection: keep-alive"])
def test_a_request_whose_end_has_two_readings_is_refused_and_the_connection_closed(server: Server, end: str) -> None:
    head = (
        f"POST /api/generate HTTP/1.{end}\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    with socket.create_connection((server.host, server.port), 20) as connection, connection.makefile("rb") as answers:
        connection.sendall(f"{head}0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        answer = answers.read()
    assert answer.split(b" ")[1] == b"400"
    assert answer.count(b"\r\nDate: ") == 1, "what follows is no request of its own"


@pytest.mark.parametrize(
    "codings", ["chunked, chunked", "chunked\r\nTransfer-Encoding: chunked", "chunked\r\n , Chunked"]
)
def test_a_body_that_is_chunked_twice_is_refused(codings: str) -> None:
    parser = RequestParser(Adjustments())
    parser.received(f"POST /chunked HTTP/1.1\r\nTransfer-Encoding: {codings}\r\n\r\n".encode())
    assert parser.error and parser.error.code == 400
    parser = RequestParser(Adjustments())
    parser.received(b"POST /chunked HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTE: chunked\r\n\r\n0\r\n\r\n")
    assert not parser.error


def test_a_request_without_a_sound_first_line_can_be_logged() -> None:
    parser = RequestParser(Adjustments())
    parser.received(b"noise\r\n\r\n")
    assert parser.error and parser.path == ""

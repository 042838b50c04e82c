"""Test the server's limit of open files, and by which threads streams are written."""

import http.client
import json
import resource
import threading
from contextlib import closing

import pytest
from waitress.task import WSGITask

from app.engine.text.tokenizer import Tokenizer
from tests.web.conftest import TEXT, Server
from tests.web.doubles import ScriptedVerifier
from tests.web.events import parse_text
from web.server import allow_files
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

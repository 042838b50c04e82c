"""Test the web server as a process: its libraries, its registration, its end."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest
import redis

from app.engine.text.tokenizer import Tokenizer
from app.local.instance import ProcessId
from tests.models import model_dir
from tests.web.conftest import TEXT, Server
from tests.web.doubles import ScriptedVerifier
from tests.web.events import parse_text
from tests.workers.cluster import wait_for
from web.factory import create_app
from web.run import stop_on_signals
from web.server import WebServer
from workers.deployment import Deployment

JSON = {"Content-Type": "application/json"}


@pytest.fixture
def process(redis_client: redis.Redis, redis_url: str) -> Iterator[subprocess.Popen[str]]:
    environment = os.environ | {
        "PACELINE_REDIS_URL": redis_url,
        "PACELINE_MODEL": str(model_dir()),
        "PACELINE_MAX_ACTIVE_REQUESTS": "8",
    }
    with subprocess.Popen(
        [sys.executable, "-m", "web.run", "--port", "0"], env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


@pytest.fixture
def running(process: subprocess.Popen[str]) -> Server:
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"serving on http://127\.0\.0\.1:(\d+)", line):
            return Server("127.0.0.1", int(found[1]))
    raise AssertionError(f"the web server ended with {process.wait()}")


def test_a_request_goes_through_the_real_process(
    running: Server, process: subprocess.Popen[str], verifier: ScriptedVerifier
) -> None:
    with closing(http.client.HTTPConnection(running.host, running.port, timeout=20)) as connection:
        connection.request("POST", "/api/generate", json.dumps({"prompt": "Hi", "stream": True}), JSON)
        events = parse_text(connection.getresponse().read().decode())
    assert events[-1].data["text"] == TEXT
    _assert_has_no_torch(process.pid)


def test_the_server_registers_and_ends_at_the_first_signal(
    running: Server, process: subprocess.Popen[str], deployment: Deployment
) -> None:
    identity = ProcessId.of(process.pid)
    assert identity is not None
    assert [(node.name, node.info["pid"]) for node in deployment.nodes.live("web")] == [("web-1", identity.worker())]
    with closing(http.client.HTTPConnection(running.host, running.port, timeout=20)) as connection:
        connection.request("POST", "/api/generate", json.dumps({"prompt": "Hi", "stream": True}), JSON)
        response = connection.getresponse()
        started_s = time.monotonic()
        process.send_signal(signal.SIGTERM)
        response.read()  # the open stream ends, too
    assert process.wait(timeout=10) == 0
    assert time.monotonic() - started_s < 5
    assert deployment.nodes.live("web") == []
    assert deployment.requests.active() == 1  # the request itself goes on


def test_a_draining_server_finishes_its_calls_and_takes_no_new(
    deployment: Deployment, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("web.server.NOTICE_S", 0.5)
    monkeypatch.setattr("web.server.LOOK_UP_S", 0.05)
    leaving, stopping = threading.Event(), threading.Event()
    server = WebServer(create_app(deployment, stopping, leaving), "127.0.0.1", 0, max_streams=8)
    thread = threading.Thread(target=server.serve, args=(stopping, leaving, 20.0))
    thread.start()
    with ExitStack() as stack:
        stack.callback(stopping.set)
        stream, answer, health = (
            stack.enter_context(closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)))
            for _ in range(3)
        )
        stream.request("POST", "/api/generate", json.dumps({"prompt": "Hi", "stream": True}), JSON)
        answer.request("POST", "/api/generate", json.dumps({"prompt": "Hi"}), JSON)
        opened = stream.getresponse()
        wait_for(lambda: deployment.requests.active() == 2, limit_s=5.0, what="both")
        leaving.set()
        health.request("GET", "/healthz")
        assert health.getresponse().status == 503
        wait_for(lambda: not _takes(server.port), limit_s=5.0, what="a closed port")
        assert thread.is_alive()
        with ScriptedVerifier(deployment, [*tokenizer.encode(TEXT), tokenizer.eos_ids[0]]):
            assert parse_text(opened.read().decode())[-1].data["text"] == TEXT
            assert json.loads(answer.getresponse().read())["text"] == TEXT
        thread.join(5.0)
        assert not thread.is_alive()


def test_the_second_signal_stops_the_drain() -> None:
    old = [(number, signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT)]
    try:
        leaving, stopping = stop_on_signals()
        signal.raise_signal(signal.SIGTERM)
        assert leaving.is_set() and not stopping.is_set()
        signal.raise_signal(signal.SIGINT)
        assert stopping.is_set()
    finally:
        for number, handler in old:
            signal.signal(number, handler)


def _takes(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_a_taken_port_is_an_error_and_no_traceback(running: Server, redis_url: str) -> None:
    environment = os.environ | {"PACELINE_REDIS_URL": redis_url, "PACELINE_MODEL": str(model_dir())}
    second = subprocess.run(
        [sys.executable, "-m", "web.run", "--port", str(running.port)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert second.returncode == 1
    assert "in use" in second.stderr and "Traceback" not in second.stderr


def _assert_has_no_torch(pid: int) -> None:
    """Read from the process's memory map; importing torch maps its library."""
    if not os.path.exists(f"/proc/{pid}/maps"):
        pytest.skip("no /proc here")
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
        libraries = maps.read()
    assert "tokenizers" in libraries  # the reading itself works
    assert "libtorch" not in libraries and "transformers" not in libraries

"""Run the clients of `./paceline chaos` and `bench load meanwhile` against a real HTTP server: every outcome counts."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from app.local import client
from app.request import GenerateRequest
from bench.chaos import clients as chaos_clients
from bench.chaos.clients import ClientCounts, Clients
from bench.load.meanwhile import Waiting
from tests.workers.cluster import wait_for

EXPECTED = (1, 2)
LIMIT_S = 20.0


class Api(BaseHTTPRequestHandler):
    """A server whose answer to a request is named by the request's prompt."""

    may_go: threading.Event  # answers that wait go on

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        fate = body["prompt"]
        if fate == "without a word":
            self.close_connection = True
            return
        status = {"refused": 503, "refused as full": 429, "refused as wrong": 400, "accepted": 202}.get(fate, 200)
        self.send_response(status)
        self.send_header("X-Request-Id", fate.replace(" ", "-"))
        if fate == "torn":
            self.send_header("Content-Length", "1000")
        self.end_headers()
        if status != 200:
            self.wfile.write(b'{"error": {"message": "no"}}')
            return
        if not body.get("stream"):
            self.wfile.write(json.dumps(_result("done", [1, 3] if fate == "wrong" else [1, 2])).encode())
            return
        self._frame("tokens", {"offset": 0, "tokens": [1], "proposers": ["target"], "text": "one"})
        if fate == "waits":
            self.may_go.wait(LIMIT_S)
        if fate == "has a gap":
            self._frame("tokens", {"offset": 2, "tokens": [3], "proposers": ["target"], "text": "three"})
        if fate == "ends in nonsense":
            self._frame("end", {})
        if fate in ("right", "wrong", "fails", "waits"):
            self._frame("end", _result("failed" if fate == "fails" else "done", [1, 3] if fate == "wrong" else [1, 2]))

    def do_GET(self) -> None:
        """Refuse to resume a stream: the request is unknown, or the server away."""
        self.send_response(404 if "forgotten" in self.path else 503)
        self.end_headers()
        self.wfile.write(b'{"error": {"message": "gone"}}')

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test's output clean."""

    def _frame(self, kind: str, data: dict[str, Any]) -> None:
        self.wfile.write(f"event: {kind}\ndata: {json.dumps(data)}\n\n".encode())
        self.wfile.flush()


def _result(status: str, token_ids: list[int]) -> dict[str, Any]:
    return {
        "id": "r",
        "status": status,
        "text": "",
        "token_ids": token_ids,
        "finish_reason": "length",
        "usage": {"prompt_tokens": 1, "completion_tokens": 2},
        "timing": {"ttft_s": 0.1, "total_s": 0.2},
        "speculation": {"rounds": 2, "drafted": 0, "accepted": 0, "mean_accepted_length": 1.0, "by_drafter": {}},
    }


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Clients]]:
    """Make clients of a kind, by default of streams, whose requests all have one fate."""
    monkeypatch.setattr(chaos_clients, "RESUME_S", 0.2)
    monkeypatch.setattr(client, "RETRY_S", 0.02)
    monkeypatch.setattr(chaos_clients, "RETRY_S", 0.02)
    Api.may_go = threading.Event()
    with ThreadingHTTPServer(("127.0.0.1", 0), Api) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        yield lambda fate, kind=Clients: kind(url, [GenerateRequest(prompt=fate)], [EXPECTED], seed=0)
        Api.may_go.set()
        server.shutdown()


def _counts(counters: ClientCounts) -> dict[str, int]:
    counts = {
        "right": counters.right,
        "wrong": len(counters.wrong),
        "failed": len(counters.failed),
        "lost": len(counters.lost),
    }
    return {name: count for name, count in {**counts, "refused": sum(counters.refused.values())}.items() if count}


@pytest.mark.parametrize(
    ("kind", "fate", "counted"),
    [
        (Clients, "right", "right"),
        (Clients, "wrong", "wrong"),
        (Clients, "fails", "failed"),
        (Clients, "has a gap", "lost"),
        (Clients, "breaks off", "lost"),
        (Clients, "forgotten", "lost"),
        (Clients, "ends in nonsense", "lost"),
        (Clients, "refused", "refused"),
        (Clients, "refused as full", "refused"),
        (Clients, "refused as wrong", "lost"),
        (Waiting, "right", "right"),
        (Waiting, "wrong", "wrong"),
        (Waiting, "accepted", "lost"),
        (Waiting, "refused", "refused"),
        (Waiting, "without a word", "lost"),
        (Waiting, "torn", "lost"),
    ],
)
def test_every_outcome_of_a_request_is_counted_as_such(
    clients: Callable[..., Clients], kind: type[Clients], fate: str, counted: str
) -> None:
    crowd = clients(fate, kind)
    crowd.start(2)
    wait_for(lambda: _counts(crowd.counts))
    crowd.stop(LIMIT_S)
    assert _counts(crowd.counts).keys() == {counted}


def test_a_server_that_is_gone_counts_as_a_refusal(free_port: int) -> None:
    crowd = Waiting(f"http://127.0.0.1:{free_port}", [GenerateRequest(prompt="x")], [EXPECTED], seed=0)
    crowd.start(1)
    wait_for(lambda: _counts(crowd.counts))
    crowd.stop(LIMIT_S)
    assert _counts(crowd.counts).keys() == {"refused"}


def test_a_request_still_waiting_at_the_end_is_lost(clients: Callable[..., Clients]) -> None:
    crowd = clients("waits")
    crowd.start(1)
    wait_for(lambda: crowd.all_moved_since(0.0))
    crowd.stop(0.1)
    assert crowd.counts.lost == ["client-0 still waits after 0 s"]


def test_clients_have_all_moved_once_the_last_one_has(clients: Callable[..., Clients]) -> None:
    crowd = clients("waits")
    crowd.start(2)
    wait_for(lambda: crowd.all_moved_since(0.0))
    since_s = time.monotonic()
    crowd._moved_s["client-0"] = since_s + 1.0
    assert not crowd.all_moved_since(since_s), "the other one has not"
    Api.may_go.set()
    crowd._moved_s["client-0"] = 0.0
    wait_for(lambda: crowd.all_moved_since(since_s))
    crowd.stop(LIMIT_S)
    assert _counts(crowd.counts).keys() == {"right"}

"""Test the bounds of readers: a request with many readers leaves threads to other clients."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import pytest

import web.api.request_events
import web.factory
from app.api_keys import add_key
from app.config import Settings
from app.errors import TooManyReaders
from tests.web.conftest import Server
from web.api.stream_limits import StreamLimits
from web.server import SPARE_THREADS
from workers.deployment import Deployment

READERS = 4
STREAMS = 8  # of the `server` fixture
CALLS = {
    "stream": ("/api/generate", {"prompt": "Hi", "stream": True}),
    "wait": ("/api/generate", {"prompt": "Hi"}),
    "v1 stream": ("/v1/completions", {"model": "smollm2-135m", "prompt": "Hi", "stream": True}),
    "v1 wait": ("/v1/completions", {"model": "smollm2-135m", "prompt": "Hi"}),
}


@pytest.fixture(autouse=True)
def few_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web.factory, "MAX_READERS", READERS)


@pytest.fixture
def fast_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let waiting threads wake often."""
    monkeypatch.setattr(web.api.request_events, "POLL_S", 0.1)


class Visitor:
    """Call the server over connections that stay open."""

    def __init__(self, server: Server, key: str | None = None) -> None:
        self._server = server
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self._open = ExitStack()

    def send(self, method: str, path: str, body: Any = None) -> HTTPConnection:
        connection = HTTPConnection(self._server.host, self._server.port, timeout=10)
        self._open.callback(connection.close)
        connection.request(method, path, None if body is None else json.dumps(body), self._headers)
        return connection

    def ask(self, method: str, path: str, body: Any = None) -> HTTPResponse:
        """Send a call and read its response's head; a stream's rest is left unread."""
        answer = self.send(method, path, body).getresponse()
        self._open.callback(answer.close)  # kept: an unreferenced response would be closed
        return answer

    def follow(self, request_id: str) -> HTTPResponse:
        return self.ask("GET", f"/api/requests/{request_id}/stream")

    def leave(self) -> None:
        self._open.close()


@pytest.fixture
def visitor(server: Server) -> Iterator[Callable[..., Visitor]]:
    with ExitStack() as clients:

        def come(key: str | None = None) -> Visitor:
            one = Visitor(server, key)
            clients.callback(one.leave)
            return one

        yield come


def newest(deployment: Deployment) -> str:
    """Wait for a request under way and return its id."""
    deadline = time.monotonic() + 5.0
    while not (found := deployment.requests.orphans()):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return found[0].request_id


def test_the_first_reader_is_free_and_further_ones_bounded() -> None:
    stream_limits = StreamLimits(3, 2)
    releases = [stream_limits.take(f"r{i}", "a") for i in range(50)]
    more = [stream_limits.take("r0", "a"), stream_limits.take("r1", "a")]
    with pytest.raises(TooManyReaders, match="2 for one tenant"):
        stream_limits.take("r2", "a")
    releases += [stream_limits.take("s0", "b"), stream_limits.take("s0", "b")]
    with pytest.raises(TooManyReaders):
        stream_limits.take("s0", "b")
    releases[0]()  # the first: one of the others is, from now on
    releases.append(stream_limits.take("r2", "a"))
    with pytest.raises(TooManyReaders), stream_limits.taken("r2", "a"):
        raise AssertionError
    for one in (*releases[1:], *more):
        one()
    assert [stream_limits.take("r", "a"), stream_limits.take("r", "a"), stream_limits.take("r", "a")]


def test_past_readers_leave_the_bounds_unchanged() -> None:
    stream_limits = StreamLimits(3, 2)
    for i in range(5):
        first, second = stream_limits.take(f"r{i}", "a"), stream_limits.take(f"r{i}", "a")
        first()
        second()
    assert [stream_limits.take("r0", "a"), stream_limits.take("r0", "a"), stream_limits.take("r0", "a")]
    with pytest.raises(TooManyReaders):
        stream_limits.take("r0", "a")
    assert [stream_limits.take("r1", "b"), stream_limits.take("r1", "b")]
    with pytest.raises(TooManyReaders):
        stream_limits.take("r1", "b")


def test_a_request_with_many_readers_does_not_block_others(
    server: Server, visitor: Callable[..., Visitor], deployment: Deployment
) -> None:
    one, other = visitor(), visitor()
    request_id = str(one.ask("POST", *CALLS["stream"]).headers["X-Request-Id"])
    answers = [one.follow(request_id) for _ in range(STREAMS + SPARE_THREADS)]
    refused = [answer for answer in answers if answer.status == 429]
    assert len(answers) - len(refused) == READERS
    assert int(refused[0].headers["Retry-After"]) >= 1
    error = json.loads(refused[0].read())["error"]
    assert f"{READERS} streams" in error["message"] and set(error) == {"message", "field", "details"}
    assert other.ask("GET", "/healthz").status == 200
    again = other.ask("POST", *CALLS["stream"])
    assert again.status == 200
    for found in (request_id, again.headers["X-Request-Id"]):
        assert other.ask("DELETE", f"/api/requests/{found}").status == 200
    assert deployment.requests.active() == 0


@pytest.mark.parametrize("kind", CALLS)
def test_a_waiting_caller_is_the_first_reader(
    kind: str,
    visitor: Callable[..., Visitor],
    deployment: Deployment,
    fast_polling: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, taken = visitor(), []
    take = StreamLimits.take

    def recorded(self: StreamLimits, request_id: str, tenant: str) -> Callable[[], None]:
        taken.append(request_id)
        return take(self, request_id, tenant)

    monkeypatch.setattr(StreamLimits, "take", recorded)
    one.send("POST", *CALLS[kind])
    request_id = newest(deployment)
    while not taken:  # it is stored before it is waited for
        time.sleep(0.005)
    assert [one.follow(request_id).status for _ in range(READERS + 1)] == [200] * READERS + [429]
    one.ask("DELETE", f"/api/requests/{request_id}")


def test_places_of_disconnected_readers_are_freed_soon(visitor: Callable[..., Visitor], fast_polling: None) -> None:
    one, leaver = visitor(), visitor()
    request_id = str(one.ask("POST", *CALLS["stream"]).headers["X-Request-Id"])
    assert [leaver.follow(request_id).status for _ in range(READERS + 1)] == [200] * READERS + [429]
    leaver.leave()
    deadline = time.monotonic() + 5.0  # a heartbeat would find out, too: after ten seconds
    while (answer := one.follow(request_id)).status == 429:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert answer.status == 200
    one.ask("DELETE", f"/api/requests/{request_id}")


class TestWithKeys:
    """Test the bounds with two tenants."""

    @pytest.fixture
    def settings(self, settings: Settings, tmp_path: Path) -> Settings:
        keys = tmp_path / "keys.jsonl"
        self.one, self.other = add_key(keys, "one"), add_key(keys, "other")
        return settings.model_copy(update={"keys": keys})

    def test_one_tenant_leaves_room_for_another(self, visitor: Callable[..., Visitor]) -> None:
        half = READERS // 2
        clients = [visitor(self.one), visitor(self.other)]
        ids = [client.ask("POST", *CALLS["stream"]).headers["X-Request-Id"] for client in clients]
        for client, request_id in zip(clients, ids, strict=True):
            found = [client.follow(str(request_id)).status for _ in range(READERS)]
            assert found == [200] * half + [429] * half
        for client, request_id in zip(clients, ids, strict=True):
            client.ask("DELETE", f"/api/requests/{request_id}")

"""Requests that are followed again and again take no thread from anybody else."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import pytest

import web.api.request_events
from app.api_keys import add_key
from app.config import Settings
from app.errors import TooManyReaders
from tests.web.conftest import Server
from web.api.stream_limits import StreamLimits
from web.server import SPARE_THREADS
from workers.deployment import Deployment

READERS = 4
STREAMS = 8  # as the server of these tests is made
CALLS = {
    "stream": ("/api/generate", {"prompt": "Hi", "stream": True}),
    "wait": ("/api/generate", {"prompt": "Hi"}),
    "v1 stream": ("/v1/completions", {"model": "smollm2-135m", "prompt": "Hi", "stream": True}),
    "v1 wait": ("/v1/completions", {"model": "smollm2-135m", "prompt": "Hi"}),
}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"max_readers": READERS})


@pytest.fixture
def fast_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting threads look up often."""
    monkeypatch.setattr(web.api.request_events, "POLL_S", 0.1)


class Visitor:
    """A client with connections that it leaves open."""

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
        """Its head is there; of a stream the rest is left unread."""
        answer = self.send(method, path, body).getresponse()
        self._open.callback(answer.close)  # kept, or it would be closed when nobody knows it any more
        return answer

    def follow(self, request_id: str) -> HTTPResponse:
        return self.ask("GET", f"/api/requests/{request_id}/stream")

    def leave(self) -> None:
        self._open.close()


@pytest.fixture
def visitor(server: Server) -> Iterator[Callable[..., Visitor]]:
    with ExitStack() as leaving:

        def come(key: str | None = None) -> Visitor:
            one = Visitor(server, key)
            leaving.callback(one.leave)
            return one

        yield come


def newest(deployment: Deployment) -> str:
    """The one request under way, once there is one."""
    deadline = time.monotonic() + 5.0
    while not (found := deployment.requests.orphans()):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return found[0].request_id


def test_the_first_reader_is_let_in_and_further_ones_are_bounded() -> None:
    stream_limits = StreamLimits(3, 2)
    leave = [stream_limits.take(f"r{i}", "a") for i in range(50)]
    more = [stream_limits.take("r0", "a"), stream_limits.take("r1", "a")]
    with pytest.raises(TooManyReaders, match="2 for one tenant"):
        stream_limits.take("r2", "a")
    leave += [stream_limits.take("s0", "b"), stream_limits.take("s0", "b")]
    with pytest.raises(TooManyReaders):
        stream_limits.take("s0", "b")
    leave[0]()  # the first: one of the others is, from now on
    leave.append(stream_limits.take("r2", "a"))
    with pytest.raises(TooManyReaders), stream_limits.taken("r2", "a"):
        raise AssertionError
    for one in (*leave[1:], *more):
        one()
    assert [stream_limits.take("r", "a"), stream_limits.take("r", "a"), stream_limits.take("r", "a")]


def test_whoever_came_and_went_leaves_the_bounds_as_they_were() -> None:
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


def test_however_often_a_request_is_followed_the_server_answers_others(
    server: Server, visitor: Callable[..., Visitor], deployment: Deployment
) -> None:
    one, other = visitor(), visitor()
    request_id = str(one.ask("POST", *CALLS["stream"]).headers["X-Request-Id"])
    answers = [one.follow(request_id) for _ in range(STREAMS + SPARE_THREADS)]
    refused = [answer for answer in answers if answer.status == 429]
    assert len(answers) - len(refused) == READERS
    assert int(refused[0].headers["Retry-After"]) >= 1
    error = json.loads(refused[0].read())["error"]
    assert f"{READERS} places" in error["message"] and set(error) == {"message", "field", "details"}
    assert other.ask("GET", "/healthz").status == 200
    again = other.ask("POST", *CALLS["stream"])
    assert again.status == 200
    for found in (request_id, again.headers["X-Request-Id"]):
        assert other.ask("DELETE", f"/api/requests/{found}").status == 200
    assert deployment.requests.active() == 0


@pytest.mark.parametrize("kind", CALLS)
def test_whoever_waits_for_a_request_is_its_first_reader(
    kind: str,
    visitor: Callable[..., Visitor],
    deployment: Deployment,
    fast_polling: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, taken = visitor(), []
    take = StreamLimits.take

    def noted(self: StreamLimits, request_id: str, tenant: str) -> Callable[[], None]:
        taken.append(request_id)
        return take(self, request_id, tenant)

    monkeypatch.setattr(StreamLimits, "take", noted)
    one.send("POST", *CALLS[kind])
    request_id = newest(deployment)
    while not taken:  # it is stored before it is waited for
        time.sleep(0.005)
    assert [one.follow(request_id).status for _ in range(READERS + 1)] == [200] * READERS + [429]
    one.ask("DELETE", f"/api/requests/{request_id}")


def test_places_of_clients_that_left_are_free_soon(visitor: Callable[..., Visitor], fast_polling: None) -> None:
    one, leaver = visitor(), visitor()
    request_id = str(one.ask("POST", *CALLS["stream"]).headers["X-Request-Id"])
    assert [leaver.follow(request_id).status for _ in range(READERS + 1)] == [200] * READERS + [429]
    leaver.leave()
    deadline = time.monotonic() + 5.0  # a heartbeat would tell, too: after ten seconds
    while (answer := one.follow(request_id)).status == 429:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert answer.status == 200
    one.ask("DELETE", f"/api/requests/{request_id}")


class TestWithKeys:
    """Of two tenants."""

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

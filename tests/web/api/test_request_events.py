"""Test waiting for a request through outages of Redis: a real one behind a relay that holds replies."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest
import redis

import web.api.request_events
from app.errors import StoreUnavailable
from app.messages import FinishReason
from app.request import GenerateRequest
from app.store import connect as connections
from tests.app.store.relay import Relay
from tests.web.conftest import Deploy
from web.api.request_events import await_end, follow
from workers.deployment import Deployment

TIMEOUT_S = 0.25  # of a connection
OUTAGE_S = 2.0
Wait = Callable[[Deployment, str], bool]


def _by_events(deployment: Deployment, request_id: str) -> bool:
    """Wait as a stream does; True if the one event is the cancelled end."""
    found = [found[1] for found in follow(deployment, [request_id], threading.Event()) if found is not None]
    return [event.finish_reason for event in found] == [FinishReason.CANCELLED]


def _for_the_answer(deployment: Deployment, request_id: str) -> bool:
    """Wait as a call for the whole answer does."""
    return await_end(deployment, [request_id], threading.Event())


@pytest.fixture
def relay(redis_client: redis.Redis, redis_url: str) -> Iterator[Relay]:
    with Relay(urlsplit(redis_url).port or 0) as relay:
        yield relay


@pytest.fixture
def far(relay: Relay, deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    """Make a web process that reaches Redis by the relay, with short timeouts."""
    monkeypatch.setattr(connections, "SOCKET_TIMEOUT_S", TIMEOUT_S)
    for name, seconds in (("OUTAGE_S", OUTAGE_S), ("POLL_S", TIMEOUT_S / 3), ("RETRY_S", 0.02)):
        monkeypatch.setattr(web.api.request_events, name, seconds)
    return deploy(redis_url=f"redis://127.0.0.1:{relay.port}/0")


@pytest.mark.parametrize("wait", [_by_events, _for_the_answer])
def test_any_number_of_short_outages_is_waited_out(
    far: Deployment, deployment: Deployment, relay: Relay, wait: Wait
) -> None:
    request_id = deployment.submit(GenerateRequest(prompt="Hi")).id
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait, far, request_id)
        for _ in range(4):
            relay.hold()
            time.sleep(0.2 * OUTAGE_S)
            relay.cut()
            time.sleep(0.2 * OUTAGE_S)
        assert not waiting.done()
        deployment.requests.end(request_id, FinishReason.CANCELLED)
        assert waiting.result(10.0)


@pytest.mark.parametrize("wait", [_by_events, _for_the_answer])
def test_a_long_outage_raises_store_unavailable(
    far: Deployment, deployment: Deployment, relay: Relay, wait: Wait
) -> None:
    request_id = deployment.submit(GenerateRequest(prompt="Hi")).id
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait, far, request_id)
        relay.hold()
        try:
            with pytest.raises(StoreUnavailable):
                waiting.result(20 * OUTAGE_S)
        finally:
            deployment.requests.end(request_id, FinishReason.CANCELLED)
            relay.cut()

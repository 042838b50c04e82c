"""Test the disconnect watcher: it checks all waiting calls, whatever error one of them meets."""

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import redis

from app.messages import Status
from app.request import GenerateRequest
from app.store.keys import Keys
from web.api.disconnects import LOOK_S, DisconnectWatcher
from workers.deployment import Deployment

SOME_LOOKS_S = 10 * LOOK_S


@pytest.fixture
def disconnects(deployment: Deployment) -> DisconnectWatcher:
    return DisconnectWatcher(deployment)


def _until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 10.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def _submitted(deployment: Deployment) -> str:
    return deployment.submit(GenerateRequest(prompt="Hi")).id


def _is_cancelled(deployment: Deployment, request_id: str) -> bool:
    return deployment.requests.snapshot(request_id).status is Status.CANCELLED


def _is_watching() -> bool:
    return any(thread.name == "disconnects" for thread in threading.enumerate())


def test_watching_resumes_for_later_disconnects(deployment: Deployment, disconnects: DisconnectWatcher) -> None:
    """Each round begins after the watching thread of the one before has ended."""
    for _ in range(3):
        request_id, gone = _submitted(deployment), threading.Event()
        with disconnects.watched([request_id], gone.is_set):
            time.sleep(SOME_LOOKS_S)
            assert not _is_cancelled(deployment, request_id)
            gone.set()
            _until(lambda request_id=request_id: _is_cancelled(deployment, request_id))
        _until(lambda: not _is_watching())


def test_a_disconnect_after_the_answer_cancels_nothing(deployment: Deployment, disconnects: DisconnectWatcher) -> None:
    request_id, gone = _submitted(deployment), threading.Event()
    with disconnects.watched([_submitted(deployment)], lambda: False):
        with disconnects.watched([request_id], gone.is_set):
            pass
        gone.set()
        time.sleep(SOME_LOOKS_S)
        assert not _is_cancelled(deployment, request_id)
    _until(lambda: not _is_watching())


def test_an_error_on_one_call_does_not_block_others(
    deployment: Deployment, disconnects: DisconnectWatcher, redis_client: redis.Redis
) -> None:
    redis_client.set(Keys(deployment.settings.namespace).request("spoilt"), "no request")
    ids = [_submitted(deployment) for _ in range(3)]
    with ExitStack() as waiting:
        for some in (["spoilt"], ["forgotten", ids[0]], [ids[1]]):
            waiting.enter_context(disconnects.watched(some, lambda: True))
        _until(lambda: all(_is_cancelled(deployment, request_id) for request_id in ids[:2]))
        assert not _is_cancelled(deployment, ids[2])


def test_disconnects_during_an_outage_cancel_after_it(
    deployment: Deployment, disconnects: DisconnectWatcher, redis_client: redis.Redis
) -> None:
    ids = [_submitted(deployment), _submitted(deployment)]
    redis_client.config_set("maxmemory", 1)
    try:
        with disconnects.watched(ids, lambda: True):
            time.sleep(SOME_LOOKS_S)
            redis_client.config_set("maxmemory", 0)
            _until(lambda: all(_is_cancelled(deployment, request_id) for request_id in ids))
    finally:
        redis_client.config_set("maxmemory", 0)

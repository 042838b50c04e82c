"""Test which envelopes of a task are refused before a thread gets them."""

from typing import Any

import pytest
from celery import Celery
from celery.contrib.testing.mocks import TaskMessage
from celery.exceptions import InvalidTaskError

from app.config import Settings
from workers.celery_app import make_celery
from workers.sound_request import SoundRequest


@pytest.fixture
def celery() -> Celery:
    made = make_celery(Settings(redis_url="redis://localhost:1/0"))
    made.task(name="sound")(_work)
    return made


def _work() -> None: ...


def _request(celery: Celery, args: Any = (), kwargs: Any = None, **headers: Any) -> SoundRequest:
    message = TaskMessage("sound", args=args, kwargs={} if kwargs is None else kwargs)
    message.headers.update(headers)
    return SoundRequest(message, app=celery, task=celery.tasks["sound"])


def test_a_sound_envelope_passes(celery: Celery) -> None:
    assert celery.tasks["sound"].Request == "workers.sound_request:SoundRequest"
    assert _request(celery, ["a"], {"b": 1}, eta=None, retries=1, timelimit=[None, 3]).args == ["a"]


@pytest.mark.parametrize("body", [{"args": 7}, {"args": {}, "kwargs": {}}, {"kwargs": [1]}, {"kwargs": "x"}])
def test_arguments_of_another_kind_are_refused(celery: Celery, body: dict[str, Any]) -> None:
    with pytest.raises(InvalidTaskError):
        _request(celery, **body)


@pytest.mark.parametrize(
    "header", [{"retries": "soon"}, {"id": 7}, {"root_id": {"a": 1}}, {"timelimit": 7}, {"eta": 7}, {"expires": -1e300}]
)
def test_headers_of_another_kind_are_refused(celery: Celery, header: dict[str, Any]) -> None:
    with pytest.raises(InvalidTaskError):
        _request(celery, **header)

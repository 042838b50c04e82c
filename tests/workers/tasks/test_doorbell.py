"""Test the doorbell's task with what anyone who reaches Redis can send."""

from typing import Any
from unittest.mock import Mock

import pytest

from app.config import Settings
from workers.celery_app import ATTEND, make_celery
from workers.tasks import doorbell

WRONG: tuple[list[Any], ...] = ([], [7], [{}], [["x"]], ["a", "b"])


def test_only_a_mailbox_is_rung(caplog: pytest.LogCaptureFixture) -> None:
    celery, service = make_celery(Settings(redis_url="redis://localhost:1/0")), Mock()
    doorbell.register(celery, service)
    for args in WRONG:
        celery.tasks[ATTEND](*args)
    celery.tasks[ATTEND]("draft:a", self="draft:a")
    assert not service.ring.called and caplog.text.count("dropped a doorbell") == len(WRONG) + 1
    celery.tasks[ATTEND]("draft:a")
    service.ring.assert_called_once_with("draft:a")

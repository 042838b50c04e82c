"""Test that tasks waiting for room are admitted or ended, over a real Redis without any other process."""

import pytest

from app.messages import FinishReason, Status
from app.request import GenerateRequest
from tests.workers.conftest import with_settings
from tests.workers.records import task_record
from workers.deployment import Deployment
from workers.tasks.results import TaskResults
from workers.tasks.settle import ResultSettler
from workers.tasks.waiting_tasks import WaitingTasks

REQUEST = GenerateRequest(prompt="Hello", raw=True, max_tokens=4)


@pytest.fixture
def full(lone_deployment: Deployment) -> Deployment:
    """Provide a deployment with room for one request, which is taken."""
    lone_deployment.requests.create(task_record("old"), limit=1, task="{}")
    return with_settings(lone_deployment, max_active_requests=1)


def test_a_task_that_waited_too_long_fails_and_holds_no_other_up(full: Deployment) -> None:
    outcomes = TaskResults(full.celery)
    WaitingTasks(full, outcomes, patience_s=-1.0).wait(REQUEST, "late", {"id": "late"})
    patient = WaitingTasks(full, outcomes, patience_s=60.0)
    patient.wait(REQUEST, "next", {"id": "next"})
    patient.beat()
    ResultSettler(full, outcomes).settle("late")
    failed = full.celery.backend.get_task_meta("late")
    assert failed["status"] == "FAILURE" and "there was no room in time" in str(failed["result"])
    assert full.requests.snapshot("late").status is Status.FAILED
    assert len(full.waiting) == 1, "the other one has time"


@pytest.mark.parametrize("expires", ["2999-01", "9999-12-31T24:00:00+00:00", "soon"])
def test_an_odd_time_to_expire_holds_no_other_up(full: Deployment, expires: str) -> None:
    waiting_tasks = WaitingTasks(full, TaskResults(full.celery), patience_s=60.0)
    waiting_tasks.wait(REQUEST, "odd", {"id": "odd", "expires": expires})
    waiting_tasks.wait(REQUEST, "gone", {"id": "gone", "expires": "2020-01"})
    full.requests.end("old", FinishReason.CANCELLED)
    waiting_tasks.beat()
    assert full.requests.snapshot("odd").status is Status.ACTIVE
    assert full.celery.backend.get_task_meta("gone")["status"] == "REVOKED"


def test_a_task_sent_twice_does_not_wait_for_its_own_room(full: Deployment) -> None:
    waiting_tasks = WaitingTasks(full, TaskResults(full.celery))
    assert waiting_tasks.admit(REQUEST, "old", {"id": "old"})
    assert not waiting_tasks.admit(REQUEST, "new", {"id": "new"})
    full.requests.end("old", FinishReason.CANCELLED)
    assert waiting_tasks.admit(REQUEST, "new", {"id": "new"})
    waiting_tasks.wait(REQUEST, "other", {"id": "other"})
    assert waiting_tasks.admit(REQUEST, "new", {"id": "new"}), "it is in, though another waits"

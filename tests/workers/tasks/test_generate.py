"""Test how a Celery task is called and how often it is read, over a real Redis without any other process."""

from collections.abc import Callable
from contextlib import ExitStack

import pytest
from celery import states
from celery.app.trace import reset_worker_optimizations, setup_worker_optimizations
from celery.result import EagerResult

from app.errors import GenerationFailed, StoreUnavailable
from workers.celery_app import GENERATE
from workers.deployment import Deployment
from workers.tasks import generate
from workers.tasks.progress import TaskProgress
from workers.tasks.results import TaskResults
from workers.tasks.waiting_tasks import WaitingTasks

Deliver = Callable[[], EagerResult]


@pytest.fixture
def waiting_tasks(lone_deployment: Deployment) -> WaitingTasks:
    return WaitingTasks(lone_deployment, TaskResults(lone_deployment.celery))


@pytest.fixture
def deliver(lone_deployment: Deployment, waiting_tasks: WaitingTasks) -> Deliver:
    """Return a call of the task as a worker makes it; the message has always the same id."""
    progress, deliveries = TaskProgress(lone_deployment), lone_deployment.deliveries
    generate.register(
        lone_deployment.celery, lone_deployment.settings, waiting_tasks, progress, deliveries, owner="this process"
    )
    task = lone_deployment.celery.tasks[GENERATE]
    return lambda: task.apply(kwargs={"prompt": "a", "raw": True}, task_id="t")


def test_a_task_at_which_three_processes_died_fails(deliver: Deliver, lone_deployment: Deployment) -> None:
    left = ExitStack()
    for owner in ("one", "two", "three"):
        left.enter_context(lone_deployment.deliveries.held("t", owner))
    found = deliver()
    assert found.state == states.FAILURE and isinstance(found.result, GenerationFailed)
    assert str(found.result) == "3 processes died while they read this task"
    assert lone_deployment.requests.active() == 0
    assert deliver().state == states.IGNORED, "sent again on purpose it has its tries again"
    left.pop_all()


def test_a_task_is_read_again_after_any_number_of_outages(
    deliver: Deliver, waiting_tasks: WaitingTasks, lone_deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> bool:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(waiting_tasks, "admit", away)
        assert {deliver().state for _ in range(5)} == {states.REJECTED}
    assert deliver().state == states.IGNORED
    assert lone_deployment.requests.active() == 1


def test_a_keyword_argument_self_is_an_unknown_field(deliver: Deliver, lone_deployment: Deployment) -> None:
    celery = lone_deployment.celery
    setup_worker_optimizations(celery)
    try:
        found = celery.tasks[GENERATE].apply(kwargs={"prompt": "a", "self": 1}, task_id="t")
    finally:
        reset_worker_optimizations(celery)
    assert found.state == states.FAILURE and isinstance(found.result, ValueError)
    assert str(found.result) == "self: this field does not exist"

"""Interleave real code that ends and admits requests over a real Redis, and kill it between any two calls
(tests/workers/interleave.py). The scripts themselves are explored in tests/app/store."""

import json
from collections.abc import Callable
from contextlib import suppress

import pytest
import redis

from app.errors import NotFound
from app.messages import Event, FinishReason, Status
from app.request import GenerateRequest
from app.store.keys import Keys
from tests.workers.conftest import with_settings
from tests.workers.interleave import Actors, Plan, explore
from tests.workers.records import task_record
from workers.deployment import Deployment
from workers.tasks.results import TaskResults
from workers.tasks.settle import ResultSettler
from workers.tasks.waiting_tasks import WaitingTasks

LINKED = "linked"  # queue of the callback of the task under test
# Celery's results unsubscribe when they are collected, which a killed actor cannot.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def test_a_result_is_given_once_and_never_forgotten(lone_deployment: Deployment, redis_client: redis.Redis) -> None:
    """Run two settlers and kill one of them: another settles again, once the claim has run out."""
    deployment = lone_deployment

    def scene() -> Actors:
        redis_client.flushdb()
        context = {"id": "a", "callbacks": [{"task": "theirs", "args": [], "options": {"queue": LINKED}}]}
        deployment.requests.create(task_record("a"), limit=9, task=json.dumps(context))
        assert deployment.requests.assign("a", "v1")
        last = Event(offset=0, tokens=(7,), proposers=("target",), finish_reason=FinishReason.LENGTH)

        def end() -> None:
            deployment.requests.commit("v1", [("a", last)])
            ResultSettler(deployment, TaskResults(deployment.celery)).settle("a")

        return {"one": end, "other": lambda: ResultSettler(deployment, TaskResults(deployment.celery)).settle("a")}

    def check(plan: Plan) -> None:
        results = redis_client.llen(LINKED)
        is_disturbed = any(deviation.kills for deviation in plan)
        assert results <= 1 if not is_disturbed else results <= 2
        deployment.requests.commit(
            "v1", [("a", Event(offset=0, finish_reason=FinishReason.STOP))]
        )  # if its verifier died
        redis_client.delete(Keys(deployment.settings.namespace).settle("a"))  # its time is over
        ResultSettler(deployment, TaskResults(deployment.celery)).settle("a")
        assert 1 <= redis_client.llen(LINKED) <= 1 + is_disturbed, plan
        assert deployment.celery.backend.get_result("a")["status"] == Status.DONE, plan
        assert deployment.requests.unsettled() == []

    assert explore(scene, check) > 100


@pytest.mark.parametrize(
    ("waiting", "patience_s", "processes", "deviations"), [("a", -1.0, 1, 2), ("a", -1.0, 2, 1), ("ab", 60.0, 2, 1)]
)
def test_a_waiting_task_is_admitted_or_ended_and_never_both(
    lone_deployment: Deployment,
    redis_client: redis.Redis,
    waiting: str,
    patience_s: float,
    processes: int,
    deviations: int,
) -> None:
    """Run one process that admits waiting tasks, or two, as if the lock had run out, while a request ends."""
    deployment = _small(lone_deployment)

    def scene() -> Actors:
        redis_client.flushdb()
        deployment.requests.create(task_record("old"), limit=1)
        for name in waiting:
            WaitingTasks(deployment, TaskResults(deployment.celery), patience_s).wait(_asked(), name, {"id": name})
        end = {"end": lambda: deployment.requests.end("old", FinishReason.CANCELLED)}
        return end | {f"process {i}": _unlocked(deployment) for i in range(processes)}

    def check(plan: Plan) -> None:
        _run_dry(deployment)
        for name in waiting:
            ResultSettler(deployment, TaskResults(deployment.celery)).settle(name)
            has_failed = deployment.requests.snapshot(name).status is Status.FAILED
            assert deployment.celery.backend.get_status(name) == ("FAILURE" if has_failed else "SUCCESS"), plan
        assert len(deployment.waiting) == 0

    assert explore(scene, check, deviations) > 10


def _run_dry(deployment: Deployment) -> None:
    """Let time pass: admitted requests end, and there is room for the next."""
    is_over = False
    while not is_over:
        is_over = not len(deployment.waiting)
        for name in ("old", "a", "b"):
            with suppress(NotFound):
                deployment.requests.end(name, FinishReason.CANCELLED)
        _unlocked(deployment)()


def _unlocked(deployment: Deployment) -> Callable[[], None]:
    waiting_tasks = WaitingTasks(deployment, TaskResults(deployment.celery))
    waiting_tasks._nodes = _Unlocked()  # type: ignore[assignment]
    return waiting_tasks.beat


class _Unlocked:
    """Nodes whose locks are always free, as if the last holder had been too slow."""

    def try_lock(self, name: str, ttl_s: float) -> bool:
        return True


def _small(deployment: Deployment) -> Deployment:
    """Return the deployment with room for one request."""
    return with_settings(deployment, max_active_requests=1)


def _asked() -> GenerateRequest:
    return GenerateRequest(prompt="Hello", raw=True, max_tokens=4)

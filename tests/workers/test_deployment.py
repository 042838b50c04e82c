"""Test that a deployment stores a request once, however often it is submitted or rejected under one id."""

from app.messages import SETTLE, Status
from app.request import GenerateRequest
from workers.deployment import Deployment


def test_submitting_again_under_the_same_id_changes_nothing(lone_deployment: Deployment) -> None:
    request = GenerateRequest(prompt="abc", raw=True, max_tokens=5, temperature=1.0)
    first = lone_deployment.submit(request, request_id="x")
    assert lone_deployment.submit(request, request_id="x") == first, "the seed drawn first counts"
    assert lone_deployment.requests.active() == 1
    assert lone_deployment.requests.snapshot("x").record == first


def test_a_rejected_request_fails_and_an_admitted_one_is_not_rejected(lone_deployment: Deployment) -> None:
    request = GenerateRequest(prompt="abc", raw=True, max_tokens=5)
    lone_deployment.reject(request, "late", "{}", "no room")
    late = lone_deployment.requests.snapshot("late")
    assert (late.status, late.error, late.record.is_task) == (Status.FAILED, "no room", True)
    assert lone_deployment.mailboxes.waiting(SETTLE) == 1
    lone_deployment.submit(request, request_id="in time", task="{}")
    lone_deployment.reject(request, "in time", "{}", "no room")
    assert lone_deployment.requests.snapshot("in time").status is Status.ACTIVE
    assert lone_deployment.mailboxes.waiting(SETTLE) == 1

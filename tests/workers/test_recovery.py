"""Test orphaned requests over a real Redis: placed, failed or settled."""

import json
import time
from typing import Any

import pytest
import redis

from app.errors import NotDurable, StoreUnavailable
from app.messages import Event, FinishReason, Stats, Status
from app.request import GenerateRequest
from app.store.protocol import Outcome
from tests.workers.records import task_record
from workers.celery_app import make_celery
from workers.deployment import Deployment
from workers.recovery import MAX_STRIKES, recover
from workers.tasks.results import TaskResults
from workers.tasks.settle import ResultSettler


def test_neighbours_of_a_culprit_are_not_blamed(lone_deployment: Deployment) -> None:
    """The culprit waits longest, so in each life of the verifier no other gets its turn before the crash."""
    deployment = lone_deployment
    for i, request_id in enumerate(("culprit", "second", "third")):
        deployment.requests.create(task_record(request_id, created_s=1000.0 + i), limit=9)
    for life in range(MAX_STRIKES + 1):
        assert _beat(deployment, f"life {life}")
        recover(deployment)
        assert deployment.requests.owned(f"life {life}") == {"culprit", "second", "third"}
        deployment.nodes.retire("verify", "verify-1", f"life {life}")
    assert _beat(deployment, "last")
    recover(deployment)
    assert deployment.requests.snapshot("culprit").status is Status.FAILED
    assert deployment.requests.owned("last") == {"second", "third"}
    assert deployment.mailboxes.waiting("settle") == 1, "its task gets the result at once"


def test_a_request_that_crashes_verifiers_after_tokens_is_found(lone_deployment: Deployment) -> None:
    deployment = lone_deployment
    for request_id, created_s in (("culprit", 2000.0), ("older", 1000.0)):
        deployment.requests.create(task_record(request_id, created_s=created_s), limit=9)
    for life in range(MAX_STRIKES + 2):
        assert _beat(deployment, f"life {life}")
        recover(deployment)
        # Both commit in the first life; later only the older one does, before the other's turn.
        for request_id in ("culprit", "older")[life > 0 :]:
            assert _commit(deployment, f"life {life}", request_id, now_s=3000.0 + life) is Outcome.COMMITTED
        deployment.nodes.retire("verify", "verify-1", f"life {life}")
    assert _beat(deployment, "last")
    recover(deployment)
    assert deployment.requests.snapshot("culprit").status is Status.FAILED
    assert deployment.requests.owned("last") == {"older"}


def test_a_burst_and_a_dead_verifiers_requests_are_spread_evenly(lone_deployment: Deployment) -> None:
    """Both happen between two heartbeats, which therefore report no sequences."""
    deployment = lone_deployment

    def beat(*names: str) -> None:
        for name in names:
            assert deployment.nodes.beat("verify", name, f"{name}'s", progress_s=0.0, info={"sequences": 0})

    for i in range(6):
        beat("a", "b")
        assert deployment.requests.create(task_record(f"request {i}", created_s=1000.0 + i), limit=9)
        deployment.place(f"request {i}")
    assert [len(deployment.requests.owned(owner)) for owner in ("a's", "b's")] == [3, 3]
    deployment.nodes.retire("verify", "b", "b's")
    beat("a", "c", "d")
    recover(deployment)
    assert [len(deployment.requests.owned(owner)) for owner in ("a's", "c's", "d's")] == [3, 2, 1]


def test_the_request_longest_without_a_token_is_the_culprit(lone_deployment: Deployment) -> None:
    """The culprit is tried first in each life, so the older request gets no turn and commits nothing either."""
    deployment = lone_deployment
    assert _beat(deployment, "first")
    for request_id, created_s, last_token_s in (("culprit", 2000.0, 3000.0), ("older", 1000.0, 3500.0)):
        deployment.requests.create(task_record(request_id, created_s=created_s), limit=9)
        deployment.place(request_id)
        assert _commit(deployment, "first", request_id, now_s=last_token_s) is Outcome.COMMITTED
    deployment.nodes.retire("verify", "verify-1", "first")
    for life in range(MAX_STRIKES):
        assert _beat(deployment, f"life {life}")
        recover(deployment)
        deployment.nodes.retire("verify", "verify-1", f"life {life}")
    assert _beat(deployment, "last")
    recover(deployment)
    assert deployment.requests.snapshot("culprit").status is Status.FAILED
    assert deployment.requests.owned("last") == {"older"}


def test_a_stored_request_is_accepted_if_redis_fails_before_placing(
    lone_deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = lone_deployment
    assert _beat(deployment, "owner")
    with monkeypatch.context() as away:
        away.setattr(deployment.nodes, "live", _unavailable)
        record = deployment.submit(GenerateRequest(prompt="Hello", raw=True, max_tokens=4))
    assert deployment.requests.snapshot(record.id).owner == ""
    recover(deployment)
    assert deployment.requests.owned("owner") == {record.id}


def test_a_refused_request_is_not_left(lone_deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    create = lone_deployment.requests.create

    def slow(*args: Any, **named: Any) -> bool:
        create(*args, **named)
        raise NotDurable("not on the disk yet")

    monkeypatch.setattr(lone_deployment.requests, "create", slow)
    with pytest.raises(StoreUnavailable):
        lone_deployment.submit(GenerateRequest(prompt="Hello", raw=True, max_tokens=4))
    assert lone_deployment.requests.orphans() == []


def test_requests_that_no_target_can_take_hide_no_others(lone_deployment: Deployment) -> None:
    requests = lone_deployment.requests
    for name in ("a", "b", "c", "new"):
        requests.create(task_record(name), limit=9)
    for name in ("a", "b", "c"):
        assert requests.assign(name, "dead", "another target")
        assert _commit(lone_deployment, "dead", name, now_s=0.0) is Outcome.COMMITTED
    assert [one.request_id for one in requests.orphans({"ours"}, 2)] == ["a", "new"]


@pytest.mark.parametrize("bad", [{"expires": "soon"}, {"compression": "none such"}])
def test_a_bad_link_holds_back_nothing(lone_deployment: Deployment, redis_client: redis.Redis, bad: Any) -> None:
    links = [{"task": "t", "args": [], "kwargs": {}, "options": {"queue": "links", **one}} for one in (bad, {})]
    lone_deployment.requests.create(task_record("a"), limit=9, task=json.dumps({"id": "a", "callbacks": links}))
    lone_deployment.requests.end("a", FinishReason.CANCELLED)
    ResultSettler(lone_deployment, TaskResults(lone_deployment.celery)).settle("a")
    assert lone_deployment.celery.backend.get_result("a")["status"] == Status.CANCELLED
    assert redis_client.llen("links") == 1, "the one that can"


def _unavailable(*_: object) -> None:
    raise StoreUnavailable("gone for a moment")


def test_no_request_is_given_up_while_no_verifier_lives(lone_deployment: Deployment) -> None:
    deployment = lone_deployment
    deployment.requests.create(task_record("a"), limit=9)
    for life in range(MAX_STRIKES + 1):
        assert deployment.requests.assign("a", f"dead {life}")
    recover(deployment)
    assert deployment.requests.snapshot("a").status is Status.ACTIVE


def test_an_undeliverable_result_does_not_block_the_others(lone_deployment: Deployment) -> None:
    deployment = lone_deployment
    spoilt = {"id": "a", "chain": [{"task": None, "args": 3, "options": "none"}]}
    deployment.requests.create(task_record("a"), limit=9, task=json.dumps(spoilt))
    deployment.requests.create(task_record("b"), limit=9, task=json.dumps({"id": "b"}))
    for request_id in ("a", "b"):
        deployment.requests.end(request_id, FinishReason.CANCELLED)
    settler = ResultSettler(deployment, TaskResults(deployment.celery))
    settler._caught_up_s -= 60.0
    settler.catch_up()
    assert deployment.celery.backend.get_result("b")["status"] == Status.CANCELLED
    assert deployment.requests.unsettled() == ["a"]


def test_a_request_is_accepted_without_placing_or_doorbell(lone_deployment: Deployment) -> None:
    nowhere = lone_deployment.settings.model_copy(update={"redis_url": "redis://127.0.0.1:1/0"})
    deployment = Deployment(lone_deployment.settings, make_celery(nowhere), lone_deployment.tokenizer)
    assert _beat(deployment, "owner")
    deployment.requests.create(task_record("a"), limit=9)
    deployment.place("a")  # the doorbell goes nowhere: no error
    assert deployment.requests.snapshot("a").owner == "owner"
    assert deployment.mailboxes.waiting("verify:verify-1") == 1
    time.sleep(2.2)  # the mark of the ring
    assert deployment.mailboxes.forgotten() == ["verify:verify-1"], "recovery rings again"


def test_doorbells_do_not_pile_up_for_an_instance_that_is_gone(
    lone_deployment: Deployment, redis_client: redis.Redis
) -> None:
    deployment = lone_deployment
    for mailbox in ("draft:here", "draft:gone", "fuse"):
        assert deployment.mailboxes.post(mailbox, ["{}"])
    time.sleep(2.2)  # the marks of the rings above, which never were, run out
    assert deployment.nodes.beat("draft", "here", "owner", progress_s=0.0, info={})
    recover(deployment)
    rung = {box: redis_client.llen(f"paceline.{box}") for box in ("draft:here", "draft:gone", "fuse")}
    assert rung == {"draft:here": 1, "draft:gone": 0, "fuse": 1}


def test_request_still_running_is_not_settled(lone_deployment: Deployment, redis_client: redis.Redis) -> None:
    lone_deployment.requests.create(task_record("a"), limit=9, task=json.dumps({"id": "a"}))
    ResultSettler(lone_deployment, TaskResults(lone_deployment.celery)).settle("a")
    assert lone_deployment.requests.unsettled() == ["a"]
    assert not redis_client.exists("celery-task-meta-a")


def _beat(deployment: Deployment, owner: str) -> bool:
    return deployment.nodes.beat("verify", "verify-1", owner, progress_s=0.0, info={"sequences": 0})


def _commit(deployment: Deployment, owner: str, request_id: str, now_s: float) -> Outcome:
    offset = len(deployment.requests.snapshot(request_id).tokens)
    event = Event(offset=offset, tokens=(7,), proposers=("target",), stats=Stats(last_token_s=now_s))
    (outcome,) = deployment.requests.commit(owner, [(request_id, event)])
    return outcome

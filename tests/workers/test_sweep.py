"""Requests that stand still: placed, swept up, given up or settled, each alone, over a real Redis."""

import json
import time

import pytest
import redis

from app.errors import StoreUnavailable
from app.messages import Event, FinishReason, Stats, Status
from app.request import GenerateRequest
from app.store.protocol import Outcome
from tests.workers.records import task_record
from workers.celery_app import make_celery
from workers.deployment import Office
from workers.tasks.results import Outcomes
from workers.tasks.settle import Settler


def test_neighbours_of_a_guilty_request_are_not_blamed(lone_office: Office) -> None:
    """The guilty one waits longest, so in each life of the verifier nobody else gets his turn before the crash."""
    office = lone_office
    for i, request_id in enumerate(("guilty", "second", "third")):
        office.requests.create(task_record(request_id, created_s=1000.0 + i), limit=9)
    for life in range(office.settings.max_strikes + 1):
        assert _beat(office, f"life {life}")
        office.sweep()
        assert office.requests.owned(f"life {life}") == {"guilty", "second", "third"}
        office.nodes.retire("verify", "verify-1", f"life {life}")
    assert _beat(office, "last")
    office.sweep()
    assert office.requests.snapshot("guilty").status is Status.FAILED
    assert office.requests.owned("last") == {"second", "third"}
    assert office.mailboxes.waiting("settle") == 1, "its task is told at once"


def test_request_that_brought_verifiers_down_after_its_first_tokens_is_found_too(lone_office: Office) -> None:
    office = lone_office
    for request_id, created_s in (("guilty", 2000.0), ("older", 1000.0)):
        office.requests.create(task_record(request_id, created_s=created_s), limit=9)
    for life in range(office.settings.max_strikes + 2):
        assert _beat(office, f"life {life}")
        office.sweep()
        # Both commit in the first life; later only the older one does, before the other's turn.
        for request_id in ("guilty", "older")[life > 0 :]:
            assert _commit(office, f"life {life}", request_id, now_s=3000.0 + life) is Outcome.COMMITTED
        office.nodes.retire("verify", "verify-1", f"life {life}")
    assert _beat(office, "last")
    office.sweep()
    assert office.requests.snapshot("guilty").status is Status.FAILED
    assert office.requests.owned("last") == {"older"}


def test_a_burst_is_shared_and_so_is_what_a_dead_verifier_leaves(lone_office: Office) -> None:
    """All of it happens between two heartbeats, which therefore say of nobody that he has anything."""
    office = lone_office

    def beat(*names: str) -> None:
        for name in names:
            assert office.nodes.beat("verify", name, f"{name}'s", progress_s=0.0, info={"sequences": 0})

    for i in range(6):
        beat("a", "b")
        assert office.requests.create(task_record(f"request {i}", created_s=1000.0 + i), limit=9)
        office.place(f"request {i}")
    assert [len(office.requests.owned(owner)) for owner in ("a's", "b's")] == [3, 3]
    office.nodes.retire("verify", "b", "b's")
    beat("a", "c", "d")
    office.sweep()
    assert [len(office.requests.owned(owner)) for owner in ("a's", "c's", "d's")] == [3, 2, 1]


def test_who_has_gone_longest_without_a_token_is_guilty_however_young(lone_office: Office) -> None:
    """That one is tried first in each life, so the other, though older, gets no turn and commits nothing either."""
    office = lone_office
    assert _beat(office, "first")
    for request_id, created_s, last_token_s in (("guilty", 2000.0, 3000.0), ("older", 1000.0, 3500.0)):
        office.requests.create(task_record(request_id, created_s=created_s), limit=9)
        office.place(request_id)
        assert _commit(office, "first", request_id, now_s=last_token_s) is Outcome.COMMITTED
    office.nodes.retire("verify", "verify-1", "first")
    for life in range(office.settings.max_strikes):
        assert _beat(office, f"life {life}")
        office.sweep()
        office.nodes.retire("verify", "verify-1", f"life {life}")
    assert _beat(office, "last")
    office.sweep()
    assert office.requests.snapshot("guilty").status is Status.FAILED
    assert office.requests.owned("last") == {"older"}


def test_request_that_is_stored_is_accepted_though_redis_went_away_before_it_was_placed(
    lone_office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    office = lone_office
    assert _beat(office, "owner")
    with monkeypatch.context() as away:
        away.setattr(office.nodes, "live", _unavailable)
        record = office.submit(GenerateRequest(prompt="Hello", raw=True, max_tokens=4))
    assert office.requests.snapshot(record.id).owner == ""
    office.sweep()
    assert office.requests.owned("owner") == {record.id}


def _unavailable(*_: object) -> None:
    raise StoreUnavailable("gone for a moment")


def test_nobody_is_given_up_while_no_verifier_lives(lone_office: Office) -> None:
    office = lone_office
    office.requests.create(task_record("a"), limit=9)
    for life in range(office.settings.max_strikes + 1):
        assert office.requests.assign("a", f"dead {life}")
    office.sweep()
    assert office.requests.snapshot("a").status is Status.ACTIVE


def test_result_that_cannot_be_delivered_does_not_hold_up_the_others(lone_office: Office) -> None:
    office = lone_office
    spoilt = {"id": "a", "chain": [{"task": None, "args": 3, "options": "none"}]}
    office.requests.create(task_record("a"), limit=9, task=json.dumps(spoilt))
    office.requests.create(task_record("b"), limit=9, task=json.dumps({"id": "b"}))
    for request_id in ("a", "b"):
        office.requests.end(request_id, FinishReason.CANCELLED)
    settler = Settler(office, Outcomes(office.celery))
    settler._caught_up_s -= 60.0
    settler.catch_up()
    assert office.celery.backend.get_result("b")["status"] == Status.CANCELLED
    assert office.requests.unsettled() == ["a"]


def test_request_is_accepted_though_it_cannot_be_placed_or_rung_for(lone_office: Office) -> None:
    nowhere = lone_office.settings.model_copy(update={"redis_url": "redis://127.0.0.1:1/0"})
    office = Office(lone_office.settings, make_celery(nowhere), lone_office.tokenizer)
    assert _beat(office, "owner")
    office.requests.create(task_record("a"), limit=9)
    office.place("a")  # the doorbell goes nowhere: no error
    assert office.requests.snapshot("a").owner == "owner"
    assert office.mailboxes.waiting("verify:verify-1") == 1
    time.sleep(2.2)  # the mark of the ring
    assert office.mailboxes.forgotten() == ["verify:verify-1"], "the sweep rings again"


def test_doorbells_do_not_pile_up_for_an_instance_that_is_gone(lone_office: Office, redis_client: redis.Redis) -> None:
    office = lone_office
    for mailbox in ("draft:here", "draft:gone", "fuse"):
        assert office.mailboxes.post(mailbox, ["{}"])
    time.sleep(2.2)  # the marks of the rings above, which never were, run out
    assert office.nodes.beat("draft", "here", "owner", progress_s=0.0, info={})
    office.sweep()
    rung = {box: redis_client.llen(f"paceline.{box}") for box in ("draft:here", "draft:gone", "fuse")}
    assert rung == {"draft:here": 1, "draft:gone": 0, "fuse": 1}


def test_request_still_running_is_not_settled(lone_office: Office, redis_client: redis.Redis) -> None:
    lone_office.requests.create(task_record("a"), limit=9, task=json.dumps({"id": "a"}))
    Settler(lone_office, Outcomes(lone_office.celery)).settle("a")
    assert lone_office.requests.unsettled() == ["a"]
    assert not redis_client.exists("celery-task-meta-a")


def _beat(office: Office, owner: str) -> bool:
    return office.nodes.beat("verify", "verify-1", owner, progress_s=0.0, info={"sequences": 0})


def _commit(office: Office, owner: str, request_id: str, now_s: float) -> Outcome:
    offset = len(office.requests.snapshot(request_id).tokens)
    event = Event(offset=offset, tokens=(7,), proposers=("target",), stats=Stats(last_token_s=now_s))
    (outcome,) = office.requests.commit(owner, [(request_id, event)])
    return outcome

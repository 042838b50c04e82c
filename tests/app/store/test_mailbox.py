"""Mailboxes against a real server: ringing, attending, taking."""

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
import redis

from app.store import mailbox
from app.store.connect import Script
from app.store.keys import Keys
from app.store.mailbox import Mailboxes

LEASE_S = 0.15


@pytest.fixture
def boxes(redis_client: redis.Redis) -> Mailboxes:
    return Mailboxes(redis_client, "test", lease_s=30.0)


@pytest.fixture
def hasty(redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Mailboxes:
    """Make mailboxes whose leases and ringing marks run out while a test waits."""
    monkeypatch.setattr(mailbox, "_RINGING_MS", int(LEASE_S * 1000))
    return Mailboxes(redis_client, "test", lease_s=LEASE_S)


def test_items_come_in_order_and_up_to_the_count(boxes: Mailboxes) -> None:
    boxes.post("m", ["a", "b", "c"])
    boxes.attend("m", "h1")
    assert boxes.take("m", "h1", 2, 0.0) == ["a", "b"]
    assert boxes.take("m", "h1", 2, 1.0) == ["c"]
    assert boxes.take("m", "h1", 2, 0.0) == []


def test_a_waiting_attendant_wakes_at_once(boxes: Mailboxes) -> None:
    boxes.attend("m", "h1")
    poster = threading.Timer(0.1, boxes.post, ("m", ["a", "b"]))
    poster.start()
    started = time.monotonic()
    assert boxes.take("m", "h1", 9, 10.0) == ["a", "b"]
    assert time.monotonic() - started < 5.0
    poster.join()


def test_an_attendant_that_lost_its_lease_while_waiting_gets_nothing(boxes: Mailboxes) -> None:
    boxes.attend("m", "h1")
    taken: list[list[str]] = []
    waiter = threading.Thread(target=lambda: taken.append(boxes.take("m", "h1", 9, 0.5)))
    waiter.start()
    time.sleep(0.1)
    boxes.release("m", "h1")
    boxes.attend("m", "h2")
    boxes.post("m", ["a"])
    waiter.join()
    assert taken == [[]]
    assert boxes.take("m", "h2", 9, 0.0) == ["a"]


@pytest.mark.parametrize("wait_s", [0.0, 0.2])
def test_an_empty_mailbox_is_waited_on_for_the_time_asked(
    boxes: Mailboxes, wait_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits_s: list[float] = []
    send = Script.send

    def recorded(script: Script, calls: Any, after: Sequence[Any] = ()) -> Any:
        waits_s.extend(after[-1:])
        return send(script, calls, after)

    monkeypatch.setattr(Script, "send", recorded)
    boxes.attend("m", "h1")
    started = time.monotonic()
    assert boxes.take("m", "h1", 9, wait_s) == []
    assert wait_s <= time.monotonic() - started
    assert 0.0 <= sum(waits_s) <= wait_s and len(waits_s) == (wait_s > 0.0), "Redis is asked to wait no longer"


def test_waiting_longer_than_a_single_block_works(boxes: Mailboxes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "BLOCK_S", 0.05)
    boxes.attend("m", "h1")
    poster = threading.Timer(0.2, boxes.post, ("m", ["a"]))
    poster.start()
    assert boxes.take("m", "h1", 9, 10.0) == ["a"]
    poster.join()


def test_looking_for_items_keeps_the_mailboxs_time_to_live(redis_client: redis.Redis, boxes: Mailboxes) -> None:
    looker = threading.Thread(target=boxes.take, args=("m", "h1", 9, 0.3))  # not the attendant: looks only
    looker.start()
    time.sleep(0.1)
    boxes.post("m", ["a"])
    looker.join()
    boxes.take("m", "h1", 9, 0.1)
    assert boxes.waiting("m") == 1
    assert redis_client.pttl("test:mail:m") > 0


def test_a_silent_attendant_loses_its_lease_and_the_right_to_take(hasty: Mailboxes) -> None:
    hasty.attend("m", "h1")
    hasty.post("m", ["a"])
    time.sleep(LEASE_S * 1.5)
    assert not hasty.renew("m", "h1")
    assert hasty.take("m", "h1", 9, 0.0) == []
    assert hasty.post("m", ["b"])
    assert hasty.attend("m", "h2")
    assert hasty.take("m", "h2", 9, 0.0) == ["a", "b"]


def test_renewing_keeps_a_lease_alive(hasty: Mailboxes) -> None:
    hasty.attend("m", "h1")
    for _ in range(6):
        time.sleep(LEASE_S / 3)
        assert hasty.renew("m", "h1")
    assert not hasty.attend("m", "h2")


def test_forgotten_names_a_mailbox_once_per_ringing_time(hasty: Mailboxes) -> None:
    hasty.post("m", ["a"])
    hasty.post("attended", ["a"])
    assert hasty.attend("attended", "h1")
    assert hasty.forgotten() == []  # the first post's ringing mark is fresh
    time.sleep(LEASE_S * 1.5)
    hasty.attend("attended", "h1")
    assert hasty.forgotten() == ["m"]
    assert hasty.forgotten() == []
    time.sleep(LEASE_S * 1.5)
    assert sorted(hasty.forgotten()) == ["attended", "m"]


def test_emptied_mailboxes_leave_no_key(redis_client: redis.Redis, boxes: Mailboxes) -> None:
    boxes.post("m", ["a"])
    boxes.attend("m", "h1")
    boxes.take("m", "h1", 9, 0.1)
    boxes.leave("m", "h1")
    assert redis_client.keys("*") == []


def test_a_mailbox_never_emptied_keeps_the_newest_items(boxes: Mailboxes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "MAX_WAITING", 3)
    boxes.post("m", ["a", "b"])
    boxes.post("m", ["c", "d"])
    boxes.attend("m", "h1")
    assert boxes.take("m", "h1", 9, 0.0) == ["b", "c", "d"]


def test_scripts_survive_a_server_that_forgot_them(redis_client: redis.Redis, boxes: Mailboxes) -> None:
    boxes.post("m", ["a"])
    boxes.attend("m", "h1")
    redis_client.script_flush()
    assert boxes.take("m", "h1", 9, 0.1) == ["a"]


def test_an_item_that_is_no_text_costs_none_of_the_others(boxes: Mailboxes, redis_client: redis.Redis) -> None:
    boxes.post("m", ["a"])
    redis_client.rpush(Keys("test").mail("m"), b"{\xff\x80")
    boxes.post("m", ["b"])
    assert boxes.attend("m", "h1")
    first, _, last = boxes.take("m", "h1", 9, 0.1)
    assert (first, last) == ("a", "b")

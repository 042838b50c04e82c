"""The queue of tasks' requests over a real Redis: its order by priority, and its bound."""

from contextlib import ExitStack, suppress

import pytest
import redis

from app.errors import QueueFull
from app.store import tasks
from app.store.nodes import Nodes
from app.store.tasks import Deliveries, WaitingRoom


@pytest.fixture
def room(redis_client: redis.Redis) -> WaitingRoom:
    return WaitingRoom(redis_client, "test")


def test_no_item_of_lower_priority_goes_before(room: WaitingRoom) -> None:
    for item, priority in (("a", "low"), ("b", "normal"), ("c", "high"), ("d", "normal")):
        room.put(item, priority)
    assert [room.first(priority) for priority in ("high", "normal", "low")] == ["c", "b", "a"]
    assert [room.before(priority) for priority in ("high", "normal", "low")] == [1, 3, 4]
    room.remove("b")
    assert (room.first(), len(room)) == ("d", 3)
    assert room.items() == [("high", "c"), ("normal", "d"), ("low", "a")]


def test_a_full_room_turns_away_whatever_the_priority(room: WaitingRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "MAX_WAITING", 2)
    room.put("a", "low")
    room.put("b", "normal")
    with pytest.raises(QueueFull):
        room.put("c", "high")
    room.remove("a", "low")
    room.put("c", "high")
    assert len(room) == 2


def test_only_deaths_of_those_that_read_a_task_are_counted(redis_client: redis.Redis) -> None:
    deliveries, nodes = Deliveries(redis_client, "test"), Nodes(redis_client, "test", lease_s=60.0)
    left = ExitStack()  # what a process that dies does not end
    for owner in ("first", "second"):
        nodes.beat("control", owner, owner, progress_s=0.0, info={})
    assert left.enter_context(deliveries.held("t", "first")) == 0
    assert redis_client.pttl("test:delivery:t") > 0
    assert left.enter_context(deliveries.held("t", "first")) == 0, "delivered again after an outage of the store"
    assert left.enter_context(deliveries.held("t", "second")) == 0, "the first still lives"
    nodes.retire("control", "second", "second")
    assert left.enter_context(deliveries.held("t", "first")) == 1
    nodes.retire("control", "first", "first")
    with suppress(ValueError), deliveries.held("t", "third") as deaths:
        assert deaths == 2
        raise ValueError("an error is an end, too")
    assert redis_client.keys("*delivery*") == []
    left.pop_all()

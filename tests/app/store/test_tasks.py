"""The queue of tasks' requests over a real Redis: its order by priority, and its bound."""

import pytest
import redis

from app.errors import QueueFull
from app.store import tasks
from app.store.tasks import WaitingRoom


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

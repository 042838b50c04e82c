"""Test how long a service without a heartbeat is left alone."""

from app.local.supervise import LOOK_S, SILENT_S, Silence

LOOKS = int(SILENT_S / LOOK_S)


def _looks(silence: Silence, count: int, live: set[str] | None = frozenset(), pid: int = 7) -> list[list[str]]:  # type: ignore[assignment]
    return [silence.look(live, {"fuse-1": pid}.get, LOOK_S) for _ in range(count)]


def test_a_process_that_lost_its_heartbeat_is_named_once_after_a_minute() -> None:
    silence = Silence()
    _looks(silence, 1, {"fuse-1"})
    assert _looks(silence, 2 * LOOKS) == [[]] * (LOOKS - 1) + [["fuse-1"]] + [[]] * LOOKS


def test_a_process_that_has_had_no_heartbeat_yet_still_starts() -> None:
    silence = Silence()
    assert not any(_looks(silence, 3 * LOOKS))
    _looks(silence, 1, {"fuse-1"}, pid=7)
    assert not any(_looks(silence, 3 * LOOKS, pid=8)), "another process of that name has not either"


def test_minutes_without_redis_do_not_count() -> None:
    silence = Silence()
    _looks(silence, 1, {"fuse-1"})
    _looks(silence, LOOKS - 1)
    _looks(silence, 1, None)
    assert not any(_looks(silence, LOOKS - 1))
    assert any(_looks(silence, 1))

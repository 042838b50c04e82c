"""Test how long a start, a service without a heartbeat, and an instance without its parent are waited for."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from app.errors import InstanceError
from app.local.children import Children
from app.local.supervise import LOOK_S, SILENT_S, Signals, Silence, Supervisor

LOOKS = int(SILENT_S / LOOK_S)


NONE: Mapping[str, str] = {}


def _looks(silence: Silence, count: int, live: Mapping[str, str] | None = NONE, pid: int = 7) -> list[list[str]]:
    return [silence.look(live, {"fuse-1": pid}.get, LOOK_S) for _ in range(count)]


def test_a_process_that_lost_its_heartbeat_is_named_once_after_a_minute() -> None:
    silence = Silence()
    _looks(silence, 1, {"fuse-1": "a"})
    assert _looks(silence, 2 * LOOKS) == [[]] * (LOOKS - 1) + [["fuse-1"]] + [[]] * LOOKS


def test_a_process_that_has_had_no_heartbeat_yet_still_starts() -> None:
    silence = Silence()
    assert not any(_looks(silence, 3 * LOOKS))
    _looks(silence, 1, {"fuse-1": "a"}, pid=7)
    assert not any(_looks(silence, 3 * LOOKS, pid=8)), "another process of that name has not either"


def test_a_heartbeat_that_outlasts_its_process_is_not_the_next_ones() -> None:
    silence = Silence()
    _looks(silence, 1, {"fuse-1": "a"}, pid=7)
    _looks(silence, 1, {"fuse-1": "a"}, pid=8)
    assert not any(_looks(silence, 3 * LOOKS, pid=8)), "it may start for minutes"
    _looks(silence, 1, {"fuse-1": "b"}, pid=8)
    assert any(_looks(silence, LOOKS, pid=8))


def test_minutes_without_redis_do_not_count() -> None:
    silence = Silence()
    _looks(silence, 1, {"fuse-1": "a"})
    _looks(silence, LOOKS - 1)
    _looks(silence, 1, None)
    assert not any(_looks(silence, LOOKS - 1))
    assert any(_looks(silence, 1))


def _start(folder: Path, missing: list[str | None]) -> None:
    looks = iter(missing)
    with Signals() as signals:
        Supervisor(Children(folder), signals).start([], lambda: next(looks), limit_s=0.0)


def test_a_start_is_given_up_once_nothing_more_comes_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.local.supervise.POLL_S", 0.001)
    _start(tmp_path, ["draft, verify, web", "draft, web", "web", None])
    with pytest.raises(InstanceError, match="has not got on for 0 s: draft, web"):
        _start(tmp_path, ["draft, web", "web", "draft, web"])


def test_the_death_of_the_parent_is_a_stop_signal() -> None:
    with Signals() as alone, Signals(os.getppid()) as bound, Signals(os.getpid()) as orphan:
        assert (alone.stopping, bound.stopping, orphan.stopping) == (False, False, True)

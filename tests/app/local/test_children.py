"""Test children: restarted at their death, stopped in order, never outliving their parent."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.local.children import FIRST_DELAY_S, Children, Service
from app.local.instance import ProcessId
from tests.workers.cluster import wait_for

LIMIT_S = 20.0


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Children]:
    made = Children(tmp_path)
    yield made
    made.stop(grace_s=0.0)


def _service(name: str, script: str, **more: int) -> Service:
    return Service(role=name, name=name, argv=("sh", "-c", script), **more)


def _pid(children: Children, role: str) -> int | None:
    processes = children.processes()[role]
    return processes[0].pid if processes else None


def test_killed_child_is_started_again(children: Children) -> None:
    children.start([_service("a", "exec sleep 300"), _service("b", "exec sleep 300")])
    first, neighbour = _pid(children, "a"), _pid(children, "b")
    assert first is not None
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: children.tend() or _pid(children, "a") not in (None, first))
    assert _pid(children, "b") == neighbour


def test_restart_delay_grows_with_each_death(children: Children, tmp_path: Path) -> None:
    children.start([_service("a", "date +%s.%N >> " + str(tmp_path / "times"))])
    times_file = tmp_path / "times"
    times_file.touch()
    wait_for(lambda: children.tend() or len(times_file.read_text().split()) >= 4)
    times = [float(text) for text in times_file.read_text().split()]
    gaps = [later - earlier for earlier, later in zip(times, times[1:], strict=False)]
    assert all(gap >= FIRST_DELAY_S * 2**i for i, gap in enumerate(gaps[:3]))
    assert children.restless(3) is not None


def test_dead_role_is_listed_without_a_process(children: Children) -> None:
    children.start([_service("a", "exit 3")])
    wait_for(lambda: _pid(children, "a") is None)
    children.tend()
    assert children.processes() == {"a": ()}
    assert "ended (3)" in (children.log(_service("a", ""))).read_text()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file that is always full")
def test_a_full_disk_delays_only_the_report(tmp_path: Path) -> None:
    reported: list[int | None] = []
    disk = tmp_path / "report"

    def report(children: Children) -> None:
        disk.write_text("pids")
        reported.append(_pid(children, "a"))

    children = Children(tmp_path, report)
    children.start([_service("a", "exec sleep 300")])
    (first,) = reported
    assert first is not None
    for path in (disk, tmp_path / "a.log"):
        path.unlink()
        path.symlink_to("/dev/full")
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: children.tend() or _pid(children, "a") not in (None, first))
    assert reported == [first]
    disk.unlink()
    children.tend()
    assert reported == [first, _pid(children, "a")]
    disk.unlink()
    disk.symlink_to("/dev/full")
    children.stop(grace_s=0.0)


def test_a_long_log_is_moved_while_its_process_writes_on(
    children: Children, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.local.children.LOG_BYTES", 1000)
    past = "".join(f"{i}\n" for i in range(1000, 1300))
    wait = f"until [ -e {tmp_path}/go ]; do sleep 0.01; done"
    children.start([_service("a", f"seq 1000 1299; {wait}; echo after; exec sleep 300")])
    log, moved = tmp_path / "a.log", tmp_path / "a.log.1"
    wait_for(lambda: children.tend() or moved.exists() and not log.read_text())
    assert moved.read_text() == past
    (tmp_path / "go").touch()
    wait_for(log.read_text)
    assert log.read_text() == "after\n", "no hole where the past was"
    log.unlink()
    children.tend()


def test_stop_ends_all_in_order_by_force_if_needed(tmp_path: Path) -> None:
    order = tmp_path / "order"
    script = (
        "trap 'echo {0} >> "
        + str(order)
        + "; exit' TERM; echo {0} >> "
        + str(order)
        + ".up; while :; do sleep 0.05; done"
    )
    children = Children(tmp_path)
    children.start(
        [
            _service("last", script.format("last"), stop_order=2),
            _service("first", script.format("first"), stop_order=0),
            _service(
                "deaf",
                "trap '' TERM; echo deaf >> " + str(order) + ".up; while :; do sleep 0.05; done",
                stop_order=1,
            ),
        ]
    )
    living = [process for processes in children.processes().values() for process in processes]
    up = tmp_path / "order.up"
    wait_for(lambda: up.exists() and len(up.read_text().split()) == 3)
    children.stop(grace_s=0.5)
    assert order.read_text().split() == ["first", "last"]
    assert not any(process.alive() for process in living)
    assert children.processes() == {}


def test_grandchildren_end_with_their_parent(children: Children, tmp_path: Path) -> None:
    children.start([_service("a", f"sleep 300 & echo $! > {tmp_path}/pid; wait")])
    pid_file = tmp_path / "pid"
    wait_for(lambda: pid_file.exists() and pid_file.read_text().strip())
    grandchild = ProcessId.of(int(pid_file.read_text()))
    assert grandchild is not None
    children.stop(grace_s=1.0)
    wait_for(lambda: not grandchild.alive())


def test_changes_call_back(tmp_path: Path) -> None:
    changes: list[set[str]] = []
    children = Children(tmp_path, lambda now: changes.append({role for role, pids in now.processes().items() if pids}))
    children.start([_service("a", "exec sleep 300")])
    children.stop(grace_s=1.0)
    assert changes == [{"a"}, set()]

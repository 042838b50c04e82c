"""Test an instance's folder, lock and state, and the identity of processes."""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app.config import ROOT
from app.errors import InstanceError
from app.local.instance import Instance, ProcessId, State, running

HOLDER = """
import sys, time
from pathlib import Path
from app.local.instance import Instance
with Instance(Path(sys.argv[1])).lock():
    print("held", flush=True)
    time.sleep(60)
"""


def _state(supervisor: ProcessId) -> State:
    return State(
        instance="default",
        supervisor=supervisor,
        url="http://x",
        redis_url="redis://:secret@x",
        namespace="n",
    )


def _me() -> ProcessId:
    me = ProcessId.of(os.getpid())
    assert me is not None
    return me


def test_second_supervisor_of_an_instance_is_refused(tmp_path: Path) -> None:
    with (
        Instance(tmp_path).lock(),
        pytest.raises(InstanceError, match="already running"),
        Instance(tmp_path).lock(),
    ):
        pass


def test_instances_of_two_names_run_together(tmp_path: Path) -> None:
    with Instance(tmp_path, "one").lock(), Instance(tmp_path, "two").lock():
        pass


def test_lock_is_free_once_its_holder_is_killed(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(InstanceError), Instance(tmp_path).lock():
            pass
        holder.kill()
    with Instance(tmp_path).lock():
        pass


def test_pid_counts_only_with_its_start_time() -> None:
    assert _me().alive()
    assert not _me().model_copy(update={"started": "1"}).alive()


def test_dead_process_and_zombie_are_not_alive() -> None:
    child = subprocess.Popen(["sleep", "60"])
    identity = ProcessId.of(child.pid)
    assert identity is not None and identity.alive()
    os.kill(child.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while identity.alive() and time.monotonic() < deadline:  # not reaped: a zombie
        time.sleep(0.01)
    assert not identity.alive()
    child.wait()
    assert ProcessId.of(child.pid) is None


def test_process_with_an_odd_name_has_a_start_time(tmp_path: Path) -> None:
    odd = tmp_path / "a) R (b"
    odd.symlink_to("/bin/sleep")
    child = subprocess.Popen([str(odd), "60"])
    identity = ProcessId.of(child.pid)
    child.kill()
    child.wait()
    assert identity is not None and identity.started.isdigit()


def test_state_of_a_dead_supervisor_does_not_run(tmp_path: Path) -> None:
    instance = Instance(tmp_path)
    instance.write(_state(_me().model_copy(update={"started": "1"})))
    assert instance.read() is not None and instance.running() is None and running(tmp_path) == {}
    instance.write(_state(_me()))
    assert instance.running() is not None and list(running(tmp_path)) == ["default"]


def test_a_full_disk_keeps_the_state_and_is_not_littered(tmp_path: Path) -> None:
    instance = Instance(tmp_path)
    instance.write(_state(_me()))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        for _ in range(3):
            with pytest.raises(OSError):
                instance.write(_state(_me()))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert instance.running() is not None
    instance.write(_state(_me()))
    assert os.listdir(instance.folder) == ["state.json"]


def test_state_file_is_private(tmp_path: Path) -> None:
    instance = Instance(tmp_path)
    instance.write(_state(_me()))
    assert (instance.folder / "state.json").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("junk", [b'{"instance": "def', b"\xff\x00", b"[" * 100_000])
def test_broken_state_file_counts_as_none(tmp_path: Path, junk: bytes) -> None:
    instance = Instance(tmp_path)
    instance.write(_state(_me()))
    (instance.folder / "state.json").write_bytes(junk)
    assert instance.read() is None


@pytest.mark.parametrize("name", ["", "../x", "a/b", "-a", "x" * 21, "a b", "ä"])
def test_names_unfit_for_a_folder_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InstanceError, match="not a valid instance name"):
        Instance(tmp_path, name)

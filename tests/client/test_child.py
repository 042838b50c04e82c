"""Test the server that a program starts: the real launcher and processes, mostly with an app that only waits."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from app.config import ROOT
from app.local.instance import ProcessId
from paceline import LLM, Error
from paceline.child import Child
from tests.workers.cluster import wait_for

APP = """
import os, sys, time
assert sys.argv[-2:] == ["--parent", str(os.getppid())], sys.argv
if os.environ.get("PACELINE_PLAN") == "broken":
    sys.exit("paceline: the plan is broken")
print("waiting for nothing", file=sys.stderr)
print("Paceline is ready at http://127.0.0.1:1", flush=True)
print(*(f"{name}={value}" for name, value in os.environ.items() if name.startswith("PACELINE_")), flush=True)
time.sleep(600)
"""
PROGRAM = """
import os, sys
import paceline.child
from pathlib import Path
paceline.child.SERVER = Path(sys.argv[1])
llm = paceline.LLM(quiet=True)
print(llm._child._process.pid, flush=True)
if sys.argv[2] == "fork" and os.fork() == 0:
    sys.exit()  # it has the object, and must not end its parent's server
if sys.argv[2] == "fork":
    os.wait()
    sys.exit(llm._child.lost())
if sys.argv[2] == "kill":
    os.kill(os.getpid(), 9)
if sys.argv[2] == "interrupt":
    raise KeyboardInterrupt
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give servers a temporary folder of this test alone."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put an app beside the launcher."""
    (tmp_path / "app" / "cli").mkdir(parents=True)
    for package in ("app", "app/cli"):  # else one of the same name further down the path is taken
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "app" / "cli" / "main.py").write_text(APP)
    shutil.copy(ROOT / "paceline", tmp_path)
    monkeypatch.setattr("paceline.child.SERVER", tmp_path)
    monkeypatch.setenv("PACELINE_PYTHON", sys.executable)
    return tmp_path


def _child(llm: LLM) -> Child:
    assert llm._child is not None
    return llm._child


def test_a_server_has_its_settings_and_ends_with_the_block(server: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with LLM(server, drafters=[], durable=True, kv_bytes=2**20) as llm:
        child, process = _child(llm), ProcessId.of(_child(llm)._process.pid)
        assert process is not None and process.alive() and child._folder.stat().st_mode & 0o777 == 0o700
        log = wait_for(lambda: text if "PACELINE_STATE" in (text := child._log.read_text()) else None)
    given = {"MODEL": server, "DRAFTERS": "none", "DURABLE": "true", "KV_BYTES": 2**20, "STATE": child._folder}
    assert all(f"PACELINE_{name}={value}" in log.split() for name, value in given.items())
    assert not process.alive() and not child._folder.exists()
    assert capsys.readouterr().err.startswith("waiting for nothing\nPaceline is ready at http://127.0.0.1:1\n")


def test_a_server_that_dies_at_its_start_leaves_its_last_lines(
    server: Path, monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    with pytest.raises(Error, match="^the server did not start:\npaceline: the plan is broken$"):
        LLM(plan="broken", quiet=True)
    monkeypatch.setenv("PACELINE_PYTHON", "/nowhere/python")
    with pytest.raises(Error, match="^the server cannot be started: .*/nowhere/python"):
        LLM()
    assert not list(temporary.glob("paceline-*"))


def test_a_server_that_has_died_is_an_error(server: Path) -> None:
    with LLM(quiet=True) as llm:
        os.kill(_child(llm)._process.pid, signal.SIGKILL)
        _child(llm)._process.wait()
        with pytest.raises(Error, match=r"the server has ended \(exit -9\). Its last lines:\n(.*\n)*Paceline is ready"):
            llm.generate(["a"])


@pytest.mark.parametrize("end", ["exit", "interrupt", "fork"])
def test_a_server_ends_with_its_program(server: Path, end: str) -> None:
    done = _run(server, end)
    assert (done.returncode == 0) == (end != "interrupt"), done.stderr
    assert ProcessId.of(int(done.stdout)) is None


def test_what_a_killed_program_leaves_is_removed_once_its_server_has_ended(server: Path, temporary: Path) -> None:
    with LLM(quiet=True) as living:
        pid = int(_run(server, "kill").stdout)
        (left,) = {*temporary.glob("paceline-*")} - {_child(living)._folder}
        with LLM(quiet=True):
            assert left.exists()
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: ProcessId.of(pid) is None, what="the server's end")
        with LLM(quiet=True):
            assert not left.exists() and _child(living)._folder.exists()


def _run(server: Path, end: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(server), end],
        env={**os.environ, "PYTHONPATH": str(ROOT / "client")},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_model_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_PYTHON", sys.executable)
    with pytest.raises(
        Error, match="the server did not start:\npaceline: the model 'no-such-model' is neither a known name"
    ):
        LLM("no-such-model", quiet=True)

"""Test a whole instance with dummy services: the real supervisor in its own process, the real Redis."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.config import ROOT
from app.local.health import Health, check, problems
from app.local.instance import Instance, ProcessId, State
from app.local.up import stop
from app.store.connect import connect
from app.store.nodes import Nodes
from tests.workers.cluster import wait_for

LIMIT_S = 30.0
DUMMY_UP = Path(__file__).parent / "dummy_up.py"


class Up:
    """Start the supervisors of one test, all under one state folder."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self._model = folder / "model"
        self._model.mkdir()
        (self._model / "config.json").write_text('{"model_type": "llama"}')
        for name in ("model.safetensors", "tokenizer.json"):
            (self._model / name).touch()
        self._processes: list[subprocess.Popen[str]] = []
        self.lines: list[str] = []

    def start(self, name: str = "default", **environ: str) -> subprocess.Popen[str]:
        """Start a supervisor and wait until it prints READY."""
        process = subprocess.Popen(
            [sys.executable, str(DUMMY_UP), name],
            env={**os.environ, "PYTHONPATH": str(ROOT), **self.environ(), **environ},
            stdout=subprocess.PIPE,
            text=True,
        )
        self._processes.append(process)
        assert process.stdout is not None
        line = "before the first"
        while line not in ("READY\n", ""):
            line = process.stdout.readline()
            self.lines.append(line)
        assert line == "READY\n", "the supervisor has ended"
        return process

    def environ(self) -> dict[str, str]:
        return {"PACELINE_STATE": str(self.state), "PACELINE_MODEL": str(self._model), "PACELINE_DRAFTERS": "none"}

    def of(self, name: str = "default") -> State:
        state = Instance(self.state, name).running()
        assert state is not None
        return state

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    made = Up(tmp_path)
    yield made
    made.end()


def _health(up: Up, name: str = "default") -> Health:
    return check(name, Instance(up.state, name).running(), lease_s=2.0)


def _processes(state: State) -> list[ProcessId]:
    return [process for processes in state.processes.values() for process in processes]


@pytest.fixture(scope="module")
def running_up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Start one instance for the tests that leave it ready."""
    made = Up(tmp_path_factory.mktemp("up"))
    made.start()
    yield made
    made.end()


@pytest.mark.parametrize("role", ["verify", "web", "redis"])
def test_killed_process_is_restarted_until_ready(running_up: Up, role: str) -> None:
    up = running_up
    wait_for(lambda: not _health(up).problems)
    before = _health(up)
    assert before.ready and before.problems == ()
    (pid,) = before.processes[role]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: _health(up).processes[role] not in ((pid,), ()))
    wait_for(lambda: not _health(up).problems)
    after = _health(up)
    assert (after.url, after.redis_url) == (before.url, before.redis_url)


def test_start_names_each_missing_role_once(running_up: Up) -> None:
    waited = [line for line in running_up.lines if line.startswith("waiting ")]
    names = [line.partition(" for ")[2].strip().split(", ") for line in waited]
    assert names and all(set(one) <= {"web", "verify", "redis"} and len(set(one)) == len(one) for one in names)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_stops_all_processes(up: Up, number: int) -> None:
    supervisor = up.start()
    living = _processes(up.of())
    assert len(living) == 3
    supervisor.send_signal(number)
    assert supervisor.wait(LIMIT_S) == 0
    assert not any(process.alive() for process in living)
    assert Instance(up.state).read() is None


def test_stop_ends_a_detached_instance(up: Up) -> None:
    supervisor = up.start()
    living = _processes(up.of())
    assert stop(Instance(up.state))
    assert not any(process.alive() for process in living)
    assert supervisor.wait(LIMIT_S) == 0
    assert not stop(Instance(up.state))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can bind a child's life to its parent's")
def test_start_works_after_a_killed_supervisor(up: Up) -> None:
    supervisor = up.start()
    before = up.of()
    connect(before.redis_url).set("key", "value")
    supervisor.kill()
    supervisor.wait()
    wait_for(lambda: not any(process.alive() for process in _processes(before)))
    assert Instance(up.state).running() is None and Instance(up.state).read() is not None
    up.start()
    assert connect(up.of().redis_url).get("key") == "value"


def test_two_instances_live_side_by_side(up: Up) -> None:
    up.start("one")
    up.start("two")
    one, two = up.of("one"), up.of("two")
    assert one.url != two.url and one.redis_url != two.redis_url
    stop(Instance(up.state, "one"))
    assert Instance(up.state, "one").running() is None
    assert _health(up, "two").ready


def test_instances_share_a_redis_by_namespaces(up: Up, redis_url: str) -> None:
    up.start("one", PACELINE_REDIS_URL=redis_url)
    up.start("two", PACELINE_REDIS_URL=redis_url)
    one, two = up.of("one"), up.of("two")
    assert one.redis_url == two.redis_url == redis_url and one.namespace != two.namespace
    assert _health(up, "one").ready and _health(up, "two").ready
    assert "redis" not in one.processes


def test_process_without_heartbeat_is_a_problem(running_up: Up) -> None:
    up = running_up
    (pid,) = _health(up).processes["verify"]
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: "verify: no heartbeat" in _health(up).problems)
    assert _health(up).processes["verify"] == (pid,)
    os.kill(pid, signal.SIGCONT)
    wait_for(lambda: not _health(up).problems)


def test_process_without_progress_is_a_problem(running_up: Up) -> None:
    elsewhere = running_up.of().model_copy(update={"namespace": "elsewhere"})  # a namespace without other heartbeats
    client = connect(elsewhere.redis_url)
    Nodes(client, "elsewhere", lease_s=60.0).beat("verify", "v", "owner", progress_s=time.time() - 61.0, info={})
    client.close()
    assert "verify: no progress for 61 s" in problems(elsewhere, 60.0)


def test_failed_detached_start_reports_and_cleans_up(up: Up, free_port: int) -> None:
    environ = {**os.environ, **up.environ(), "PACELINE_REDIS_URL": f"redis://127.0.0.1:{free_port}/0"}
    done = subprocess.run(
        [sys.executable, "-m", "app.cli.main", "up", "-d"],
        env=environ,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1 and done.stdout == ""
    assert "did not start" in done.stderr and "Redis does not answer" in done.stderr
    assert Instance(up.state).read() is None


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("DRAFTERS", "nosuch", "PACELINE_DRAFTERS: drafter 'nosuch' is neither in drafters"),
        ("PHRASES", "nowhere", "PACELINE_PHRASES: the store of phrases 'nowhere' does not exist"),
        ("KEYS", "/nowhere", "the file of API keys /nowhere cannot be used: No such file or directory"),
    ],
)
def test_up_refuses_wrong_settings_before_a_start(up: Up, name: str, value: str, sentence: str) -> None:
    environ = {**os.environ, **up.environ(), f"PACELINE_{name}": value}
    for words in (["up"], ["up", "-d"]):
        done = subprocess.run(
            [sys.executable, "-m", "app.cli.main", *words],
            env=environ,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 1 and sentence in done.stderr
        assert Instance(up.state).read() is None


def test_interrupted_start_reports_and_cleans_up(up: Up) -> None:
    """Its model cannot be loaded, so it never gets ready."""
    process = subprocess.Popen(
        [sys.executable, "-m", "app.cli.main", "up"],
        env={**os.environ, **up.environ()},
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: (state := Instance(up.state).running()) and len(_processes(state)) > 3)
    living = _processes(up.of())
    process.send_signal(signal.SIGINT)
    _, printed = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130 and printed.endswith("paceline: interrupted\n")
    assert not any(process.alive() for process in living)
    assert Instance(up.state).read() is None

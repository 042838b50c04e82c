"""A whole instance with dummy services: the real supervisor in its own process, the real Redis."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.config import ROOT
from app.local.health import Health, check, problems
from app.local.instance import Instance, ProcessId, State
from app.local.up import stop
from app.store.connect import connect
from app.store.nodes import Nodes

LIMIT_S = 30.0
DUMMY_UP = Path(__file__).parent / "dummy_up.py"


class Up:
    """Supervisors started by one test, all under one state folder."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self._model = folder / "model"
        self._model.mkdir()
        (self._model / "config.json").write_text('{"model_type": "llama"}')
        for name in ("model.safetensors", "tokenizer.json"):
            (self._model / name).touch()
        self._processes: list[subprocess.Popen[str]] = []
        self.told: list[str] = []

    def start(self, name: str = "default", **environ: str) -> subprocess.Popen[str]:
        """Start a supervisor and wait until it says that all is ready."""
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
            self.told.append(line)
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


def _wait(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def _processes(state: State) -> list[ProcessId]:
    return [process for processes in state.processes.values() for process in processes]


@pytest.mark.parametrize("role", ["verify", "web", "redis"])
def test_killed_process_comes_back_under_another_pid_and_all_is_ready_again(up: Up, role: str) -> None:
    up.start()
    before = _health(up)
    assert before.ready and before.problems == ()
    (pid,) = before.processes[role]
    os.kill(pid, signal.SIGKILL)
    _wait(lambda: _health(up).processes[role] not in ((pid,), ()))
    _wait(lambda: _health(up).ready)
    after = _health(up)
    assert (after.url, after.redis_url) == (before.url, before.redis_url)


def test_while_it_starts_it_names_whom_it_waits_for_each_once(up: Up) -> None:
    up.start()
    waited = [line for line in up.told if line.startswith("waiting for ")]
    names = [line.removeprefix("waiting for ").strip().split(", ") for line in waited]
    assert names and all(set(one) <= {"web", "verify", "redis"} and len(set(one)) == len(one) for one in names)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_stops_every_process_and_the_instance_is_gone(up: Up, number: int) -> None:
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
def test_killed_supervisor_leaves_nothing_behind_and_the_next_start_works(up: Up) -> None:
    supervisor = up.start()
    before = up.of()
    connect(before.redis_url).set("key", "value")
    supervisor.kill()
    supervisor.wait()
    _wait(lambda: not any(process.alive() for process in _processes(before)))
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


def test_in_a_given_redis_instances_keep_to_keys_of_their_own(up: Up, redis_url: str) -> None:
    up.start("one", PACELINE_REDIS_URL=redis_url)
    up.start("two", PACELINE_REDIS_URL=redis_url)
    one, two = up.of("one"), up.of("two")
    assert one.redis_url == two.redis_url == redis_url and one.namespace != two.namespace
    assert _health(up, "one").ready and _health(up, "two").ready
    assert "redis" not in one.processes


def test_silent_process_makes_an_instance_not_ready(up: Up) -> None:
    up.start()
    (pid,) = _health(up).processes["verify"]
    os.kill(pid, signal.SIGSTOP)
    _wait(lambda: "verify: no heartbeat" in _health(up).problems)
    assert not _health(up).ready and _health(up).processes["verify"] == (pid,)
    os.kill(pid, signal.SIGCONT)
    _wait(lambda: _health(up).ready)


def test_process_that_lives_and_gets_nowhere_makes_an_instance_not_ready(up: Up) -> None:
    up.start()
    elsewhere = up.of().model_copy(update={"namespace": "elsewhere"})  # where nobody else beats
    client = connect(elsewhere.redis_url)
    Nodes(client, "elsewhere", lease_s=60.0).beat("verify", "v", "owner", progress_s=time.time() - 61.0, info={})
    client.close()
    assert "verify: no progress for 61 s" in problems(elsewhere, 60.0)


def test_detached_start_that_fails_says_why_and_leaves_nothing(up: Up, free_port: int) -> None:
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
    ("name", "value", "said"),
    [
        ("DRAFTERS", "nosuch", "PACELINE_DRAFTERS: there is no drafter 'nosuch'"),
        ("PHRASES", "nowhere", "PACELINE_PHRASES: there is no store of phrases 'nowhere'"),
        ("KEYS", "/nowhere", "the API keys in /nowhere: No such file or directory"),
    ],
)
def test_what_its_processes_would_refuse_is_refused_before_they_start(up: Up, name: str, value: str, said: str) -> None:
    environ = {**os.environ, **up.environ(), f"PACELINE_{name}": value}
    for words in (["up"], ["up", "-d"]):
        done = subprocess.run(
            [sys.executable, "-m", "app.cli.main", *words],
            env=environ,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=10,
        )
        assert done.returncode == 1 and said in done.stderr
        assert Instance(up.state).read() is None


def test_interrupted_while_it_starts_it_says_so_and_leaves_nothing(up: Up) -> None:
    """The model is none, so it never gets ready."""
    process = subprocess.Popen(
        [sys.executable, "-m", "app.cli.main", "up"],
        env={**os.environ, **up.environ()},
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    _wait(lambda: (state := Instance(up.state).running()) and len(_processes(state)) > 3)
    living = _processes(up.of())
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130 and said.endswith("paceline: interrupted\n")
    assert not any(process.alive() for process in living)
    assert Instance(up.state).read() is None

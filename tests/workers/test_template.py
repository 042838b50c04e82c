"""Test a template's forks: one follows another that was killed, and none outlives what it was told."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.config import ROOT
from app.local.instance import ProcessId
from tests.workers.cluster import wait_for
from workers.template import MOST_DEATHS, Template

SCRIPT = """
import os, sys, time
from workers.template import Template

def serve(life):
    with open(sys.argv[1], "a") as file:
        file.write(f"{os.getpid()} {life.owner} {life.predecessor}.\\n")
    EVERY
    return 3

sys.exit(Template().run(serve))
"""


@pytest.fixture
def lives(tmp_path: Path) -> Path:
    path = tmp_path / "lives"
    path.touch()
    return path


@pytest.fixture
def template(lives: Path, request: pytest.FixtureRequest) -> Iterator["subprocess.Popen[bytes]"]:
    script = SCRIPT.replace("EVERY", request.param)
    with subprocess.Popen([sys.executable, "-c", script, str(lives)], cwd=ROOT) as process:
        yield process
        process.kill()


def _lives(path: Path, count: int) -> list[list[str]]:
    wait_for(lambda: path.read_text().count("\n") >= count, what=f"life {count}")
    return [line.rstrip(".").split() for line in path.read_text().splitlines()]


@pytest.mark.parametrize("template", ["time.sleep(600)"], indirect=True)
def test_a_killed_worker_has_a_successor_that_knows_it(template: "subprocess.Popen[bytes]", lives: Path) -> None:
    ((first, owner),) = _lives(lives, 1)
    identity = ProcessId.of(template.pid)
    assert identity is not None and identity.worker() == int(first)
    os.kill(int(first), signal.SIGKILL)
    second, other, predecessor = _lives(lives, 2)[1]
    assert predecessor == owner != other and identity.worker() == int(second)
    template.send_signal(signal.SIGTERM)
    template.wait(20.0)
    assert ProcessId.of(int(second)) is None


@pytest.mark.parametrize("template", ["time.sleep(600)"], indirect=True)
def test_a_worker_does_not_outlive_its_template(template: "subprocess.Popen[bytes]", lives: Path) -> None:
    ((first, _),) = _lives(lives, 1)
    template.kill()
    wait_for(lambda: ProcessId.of(int(first)) is None)


@pytest.mark.parametrize(
    ("template", "status", "count"),
    [("pass", 3, 1), ("os.kill(os.getpid(), 9)", 0, MOST_DEATHS)],
    indirect=["template"],
)
def test_a_worker_that_fails_or_dies_on_and_on_ends_the_template(
    template: "subprocess.Popen[bytes]", lives: Path, status: int, count: int
) -> None:
    assert template.wait(20.0) == status
    assert len(_lives(lives, count)) == count


def test_where_nothing_may_be_forked_the_process_itself_serves() -> None:
    assert Template().run(lambda life: os.getpid() * (not life.predecessor), forks=False) == os.getpid()

"""Test the wheel as a user has it: installed where nothing else is, beside modules of the server's names."""

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.config import PREFIX, ROOT
from app.local.instance import ProcessId
from tests.models import model_dir
from tests.workers.cluster import wait_for

pytestmark = [pytest.mark.extended, pytest.mark.slow]

PROGRAM = """
import app, sys, web, workers
from paceline import LLM
with LLM(sys.argv[1], quiet=True) as llm:
    answers = llm.generate(["Name three colours.", "Name three birds."], max_tokens=24, temperature=0.8, seed=1)
    compared = llm.compare("Write a Python class for a stack.", max_tokens=24)
    print(llm._child._process.pid, flush=True)
    if sys.argv[2:]:
        input()
print(len(answers), all(answer.text for answer in answers), compared.same, app.MINE, web.MINE, workers.MINE)
print(sorted({"numpy", "torch", "redis", "flask"} & sys.modules.keys()))
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel, install it into an empty environment, and write a program with modules of its own."""
    folder = tmp_path_factory.mktemp("program")
    for name in ("app", "web", "workers", "redis"):
        (folder / f"{name}.py").write_text("MINE = 'mine'")
    (folder / "program.py").write_text(PROGRAM)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "-q", "--no-deps", "-w", str(folder), str(ROOT)], check=True)
    (wheel,) = folder.glob("paceline-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"paceline"} and "paceline/py.typed" in names
    listed = subprocess.run(
        ["git", "ls-files", "app", "workers", "web", "kernels"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert {f"paceline/_server/{name}" for name in listed} <= set(names)
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    python = str(folder / "venv" / "bin" / "python")
    subprocess.run([*pip, "--python", python, "install", "-q", "--no-index", str(wheel)], check=True)
    return folder


def _start(program: Path, *command: str) -> "subprocess.Popen[str]":
    clean = {name: text for name, text in os.environ.items() if not name.startswith((PREFIX, "PYTHON", "XDG_"))}
    environ = {
        **clean,
        "PACELINE_PYTHON": sys.executable,
        "XDG_STATE_HOME": str(program / "state"),
        "TMPDIR": str(program),
    }
    return subprocess.Popen(
        command,
        cwd=program,
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def killed(program: Path) -> Iterator["subprocess.Popen[str]"]:
    process = _start(program, "venv/bin/python", "program.py", str(model_dir()), "wait")
    with process:
        yield process
        process.kill()


def test_a_program_generates_with_modules_of_its_own(program: Path) -> None:
    process = _start(program, "venv/bin/python", "program.py", str(model_dir()))
    out, err = process.communicate(timeout=400)
    assert process.returncode == 0 and err == "", err
    pid, *lines = out.splitlines()
    assert lines == ["2 True True mine mine mine", "[]"]
    assert ProcessId.of(int(pid)) is None


def test_a_servers_program_may_be_killed(killed: "subprocess.Popen[str]") -> None:
    assert killed.stdout is not None
    server = ProcessId.of(int(killed.stdout.readline()))
    assert server is not None
    killed.kill()
    wait_for(lambda: not server.alive(), what="the server to end without its program")


def test_the_commands_run_where_the_users_modules_lie(program: Path) -> None:
    def run(*words: str) -> tuple[int, str]:
        process = _start(program, "venv/bin/paceline", *words)
        out, err = process.communicate(timeout=400)
        return process.returncode, out + err

    assert run("--version")[1].startswith("paceline 0.")
    code, out = run("up", str(model_dir()), "-d")
    try:
        assert code == 0 and "http://127.0.0.1:" in out, out
        assert json.loads(run("status", "--json")[1])["ready"]
        assert (program / "state" / "paceline" / "default" / "state.json").is_file()
        assert "[4 tokens" in run("generate", "Hello", "--max-tokens", "4")[1]
    finally:
        assert run("down") == (0, "stopped: default\n")
    assert run("doctor")[0] == 0

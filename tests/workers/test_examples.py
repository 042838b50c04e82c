"""Run what stands in examples/, as a reader would."""

import json
import os
import re
import subprocess
import sys

import pytest

from app.config import PREFIX, ROOT
from tests.models import model_dir
from tests.workers.cluster import Cluster

EXAMPLES = ROOT / "examples"


def run(command: list[str]) -> str:
    """Return what the command prints, in the clone, without settings of the user's own."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    environ = {
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'client'}",
        "PACELINE_PYTHON": sys.executable,
        "PACELINE_MODEL": str(model_dir()),
    }
    done = subprocess.run(
        command, cwd=ROOT, env=clean | environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_listed_and_run_here() -> None:
    files = {path.name for path in EXAMPLES.iterdir() if path.is_file()} - {"README.md"}
    assert files == {"speculate.py", "in_a_program.py", "openai_client.py", "celery_client.py", "own_model.md"}
    assert all(f"({name})" in (EXAMPLES / "README.md").read_text() for name in files)


def test_speculate_accepts_drafts_and_ends() -> None:
    out = run([sys.executable, "examples/speculate.py"])
    accepted = [int(count) for count in re.findall(r"(\d+) accepted", out)]
    tokens, rounds = map(int, re.findall(r"(\d+) tokens in (\d+) rounds", out)[0])
    assert rounds == len(accepted) and sum(accepted) > 0
    assert tokens <= sum(accepted) + rounds


def test_the_openai_client_shows_a_stream(real: Cluster) -> None:
    real.await_ready()
    out = run([sys.executable, "examples/openai_client.py", real.url])
    assert "class Stack" in out and re.search(r"48 tokens, \d+ of them drafted", out)


def test_a_program_generates_streams_and_compares(real: Cluster) -> None:
    real.await_ready()
    out = run([sys.executable, "examples/in_a_program.py", real.url])
    assert out.count("tokens were drafted") == 2 and "class Stack" in out and "the same text" in out


def test_the_celery_client_shows_a_task_and_a_chain(real: Cluster) -> None:
    real.await_ready()
    out = run([sys.executable, "examples/celery_client.py", real.redis_url])
    assert len(out.strip()) > 20


@pytest.mark.slow
def test_a_model_of_ones_own_is_served_as_the_page_says() -> None:
    first = re.findall(r"```\n(.*?)```", (EXAMPLES / "own_model.md").read_text(), re.DOTALL)[0]
    lines = [line.strip() for line in first.splitlines()]
    command = "\n".join(lines).replace("/path/to/model", str(model_dir()))
    assert command.count("PACELINE_MODEL=") == 1 and "./paceline generate" in command
    answer = json.loads(run(["sh", "-ec", command]))
    assert "class Stack" in answer["text"]
    assert {"drafted", "accepted"} <= answer["speculation"].keys()

"""Test a drafter and a verifier on two hosts: network namespaces with a cable between them and one Redis."""

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from app.config import ROOT
from app.local.redis_server import find_server
from app.request import GenerateRequest
from lab.deployed.deployment import stop
from lab.deployed.network import Host, lacking, star
from tests.workers.cluster import wait_for
from tests.workers.conftest import Alone

PORT = 6379  # of a namespace that nothing else is in


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    """Connect the verifier's host and the drafter's by a cable, to each other only."""
    if why := lacking():
        pytest.skip(why)
    with ExitStack() as stack:
        try:
            here, (there,) = stack.enter_context(star(f"paceline-{os.getpid()}", 1))
        except OSError as error:
            pytest.skip(f"no namespaces with a cable here: {error}")
        yield here, there


@pytest.fixture
def workers(hosts: tuple[Host, Host], tiny_environ: dict[str, str], tmp_path: Path) -> Iterator[dict[str, str]]:
    """Run Redis and a verifier on one host, a drafter on the other; give the settings they share."""
    here, there = hosts
    password = secrets.token_urlsafe(16)
    config = tmp_path / "redis.conf"
    config.write_text(
        f'bind {there.hub}\nport {PORT}\nrequirepass {password}\nsave ""\nappendonly no\ndir "{tmp_path}"\n'
    )
    environ = {
        **tiny_environ,
        # Lookup learns what the client asks again, and leaves the model nothing to do.
        "PACELINE_PLAN": "{model_free = false}",
        "PACELINE_REDIS_URL": f"redis://:{password}@{there.hub}:{PORT}/0",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    worker = (sys.executable, "-m", "workers.run")
    commands = [
        (here, "redis", (str(find_server()), str(config))),
        (here, "verify", (*worker, "verify", "--node", "verify-1")),
        (there, "draft", (*worker, "draft", "--node", "draft-1")),
    ]
    with ExitStack() as stack:
        for host, role, command in commands:
            process = host.start(tmp_path / f"{role}.log", environ, *command)
            stack.callback(stop, process)
            if role == "redis":
                log = tmp_path / "redis.log"
                wait_for(lambda log=log: "eady to accept" in log.read_text(), limit_s=10.0, what="Redis")
        yield environ


@pytest.mark.extended
def test_a_drafter_on_another_host_guesses_the_tokens_and_runs_ahead(
    hosts: tuple[Host, Host], workers: dict[str, str], alone: Alone, tmp_path: Path
) -> None:
    request = GenerateRequest(prompt="Over the hills", raw=True, max_tokens=120)
    done = subprocess.run(
        hosts[0].command(sys.executable, "-m", "tests.workers.lone_client", request.model_dump_json()),
        env={**os.environ, **workers},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=660,
    )
    logs = "".join((tmp_path / f"{role}.log").read_text()[-2000:] for role in ("verify", "draft"))
    assert done.returncode == 0, done.stderr[-2000:] + logs
    answer = json.loads(done.stdout)
    assert answer["tokens"] == alone(request)
    print(answer["stats"], answer["drafter"])
    assert answer["drafter"]["host"] == hosts[1].name
    assert answer["stats"]["by_drafter"]["twin"]["accepted"] > 0
    assert answer["drafter"]["ahead_hits"] > 0, "its cores are its own, so it goes on while a verdict is pending"

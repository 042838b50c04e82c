"""Test a drafter and a verifier on two hosts: network namespaces with a cable between them and one Redis."""

import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from app.config import ROOT
from app.local.redis_server import find_server
from app.request import GenerateRequest
from tests.workers.cluster import wait_for
from tests.workers.conftest import Alone

VERIFIER, DRAFTER = "192.0.2.1", "192.0.2.2"  # addresses for examples (RFC 5737): of no real network
PORT = 6379  # of a namespace that nothing else is in


class Host:
    """A network namespace; its processes have its name as host name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def command(self, *command: str) -> list[str]:
        """Return the command line that runs `command` there."""
        named = f'hostname {self.name} && exec "$@"'
        return ["ip", "netns", "exec", self.name, "unshare", "--uts", "sh", "-c", named, "sh", *command]

    def start(self, log: Path, environ: dict[str, str], *command: str) -> "subprocess.Popen[bytes]":
        """Start a process there."""
        with log.open("wb") as out:
            return subprocess.Popen(
                self.command(*command), env={**os.environ, **environ}, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT
            )


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    """Connect the verifier's host and the drafter's by a cable, to each other only."""
    if not all(shutil.which(tool) for tool in ("ip", "unshare", "hostname")):
        pytest.skip("no ip, unshare or hostname here")
    names = [f"paceline-{os.getpid()}-{side}" for side in ("v", "d")]
    with ExitStack() as stack:
        for name in names:
            made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
            if made.returncode:
                pytest.skip(f"no network namespaces here: {made.stderr.strip()}")
            stack.callback(subprocess.run, ["ip", "netns", "del", name], check=True)
        cable = ["ip", "-n", names[0], "link", "add", "cable", "type", "veth", "peer", "name", "cable"]
        laid = subprocess.run([*cable, "netns", names[1]], capture_output=True, text=True)
        if laid.returncode:
            pytest.skip(f"no cable between namespaces here: {laid.stderr.strip()}")
        for name, address in zip(names, (VERIFIER, DRAFTER), strict=True):
            subprocess.run(["ip", "-n", name, "address", "add", f"{address}/24", "dev", "cable"], check=True)
            for device in ("lo", "cable"):
                subprocess.run(["ip", "-n", name, "link", "set", device, "up"], check=True)
        yield Host(names[0]), Host(names[1])


@pytest.fixture
def workers(hosts: tuple[Host, Host], tiny_environ: dict[str, str], tmp_path: Path) -> Iterator[dict[str, str]]:
    """Run Redis and a verifier on one host, a drafter on the other; give the settings they share."""
    here, there = hosts
    password = secrets.token_urlsafe(16)
    config = tmp_path / "redis.conf"
    config.write_text(
        f'bind {VERIFIER}\nport {PORT}\nrequirepass {password}\nsave ""\nappendonly no\ndir "{tmp_path}"\n'
    )
    environ = {
        **tiny_environ,
        "PACELINE_MODEL_FREE": "false",  # they learn what the client asks again, and leave the model nothing to do
        "PACELINE_REDIS_URL": f"redis://:{password}@{VERIFIER}:{PORT}/0",
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
            stack.callback(_stop, process)
            if role == "redis":
                log = tmp_path / "redis.log"
                wait_for(lambda log=log: "eady to accept" in log.read_text(), limit_s=10.0, what="Redis")
        yield environ


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


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

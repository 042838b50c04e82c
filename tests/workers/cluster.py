"""Run a whole deployment of real processes for tests: `./paceline up -d`, and a client that resumes streams."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any, Self

from app.config import ROOT, Settings
from app.local.health import Health, check
from app.local.instance import Instance
from app.request import GenerateRequest
from tests.web.events import parse
from workers.deployment import Deployment

READY_S = 180.0
RECOVERY_S = 150.0  # on a busy machine the default target takes up to a minute to be loaded and measured
LEASE_S = 2.0


def wait_for(condition: Callable[[], Any], limit_s: float = RECOVERY_S, what: str = "") -> Any:
    """Return the first true value of `condition`; fail the test without one in time."""
    deadline = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited in vain for {what or condition}"
        time.sleep(0.02)
    return value


class Cluster:
    """An instance under a state folder of its own."""

    def __init__(self, name: str, folder: Path, environ: dict[str, str]) -> None:
        self.name = name
        self.state = folder
        self._environ = {
            **os.environ,
            "PACELINE_PYTHON": sys.executable,
            "PACELINE_STATE": str(folder),
            "PACELINE_KEYS": "",  # not those of the user who runs the tests
            **environ,
        }
        self._instance = Instance(folder, name)
        self.url = self.redis_url = self.namespace = ""

    def up(self) -> None:
        """Start it; return when all its processes answer."""
        done = self._paceline("up", "-d", "--instance", self.name)
        assert done.returncode == 0, done.stderr + self.logs(2000)
        status = json.loads(self._paceline("status", "--json", "--instance", self.name).stdout)
        assert status["ready"], status
        self.url, self.redis_url, self.namespace = status["url"], status["redis_url"], status["namespace"]

    def down(self) -> None:
        """Stop it and all its processes."""
        self._paceline("down", "--instance", self.name)

    def status(self) -> Health:
        """Return what `paceline status --json` prints, without starting a process for it."""
        return check(self.name, self._instance.running(), LEASE_S)

    def pid(self, role: str) -> int:
        """Return the id of this role's one process; wait for it while it is restarted."""
        (pid,) = wait_for(lambda: self.status().processes[role], what=f"a {role} process")
        return int(pid)

    def signal(self, role: str, number: signal.Signals) -> int:
        """Send the role's process a signal; return its id."""
        pid = self.pid(role)
        os.kill(pid, number)
        return pid

    def await_ready(self) -> None:
        """Wait until every role has a heartbeat again."""
        wait_for(lambda: not self.status().problems, what=f"{self.name} to be ready: {self.status().problems}")

    def await_restart(self, role: str, old_pid: int) -> float:
        """Wait until the supervisor has replaced `old_pid` and all is ready; return the seconds."""
        started = time.monotonic()
        wait_for(lambda: self.status().processes[role] not in ((old_pid,), ()), what=f"another {role}")
        self.await_ready()
        return time.monotonic() - started

    def settings(self) -> Settings:
        """Return its workers' settings."""
        values = {name: value for name, value in self._environ.items() if name.startswith("PACELINE_")}
        return Settings.from_env({**values, "PACELINE_REDIS_URL": self.redis_url, "PACELINE_NAMESPACE": self.namespace})

    def deployment(self) -> Deployment:
        """Open its store and mailboxes."""
        return Deployment.open(self.settings())

    def log(self, role: str) -> str:
        """Return what the role's processes have logged so far."""
        return (self.state / self.name / "logs" / f"{role}-1.log").read_text(errors="replace")

    def logs(self, last: int = 10**9) -> str:
        """Return all logs, or so many characters of the end of each."""
        logs = sorted((self.state / self.name / "logs").glob("*.log"))
        return "\n".join(f"== {log.name}\n{log.read_text(errors='replace')[-last:]}" for log in logs)

    def start_worker(self, role: str, node: str, **settings: str) -> "subprocess.Popen[bytes]":
        """Start one more worker beside the supervisor's, with PACELINE_* variables of its own, if any, by name."""
        environ = {
            **self._environ,
            **settings,
            "PACELINE_REDIS_URL": self.redis_url,
            "PACELINE_NAMESPACE": self.namespace,
            "HF_HUB_OFFLINE": "1",
        }
        with (self.state / self.name / "logs" / f"{node}.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "workers.run", role, "--node", node],
                env=environ,
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def post(self, body: dict[str, Any]) -> dict[str, Any]:
        """POST /api/generate; return the answer."""
        with urllib.request.urlopen(self._generate(body), timeout=120) as response:
            return dict(json.load(response))

    def get(self, path: str, method: str = "GET") -> dict[str, Any]:
        """GET any other path; return the answer."""
        call = urllib.request.Request(self.url + path, method=method)
        with urllib.request.urlopen(call, timeout=30) as response:
            return dict(json.load(response))

    def read(self, path: str) -> str:
        """The text of a page."""
        with urllib.request.urlopen(self.url + path, timeout=30) as response:
            return str(response.read().decode())

    def stream(self, request: GenerateRequest) -> "Stream":
        """Start a request and follow it."""
        body = {**request.model_dump(mode="json", exclude_none=True), "stream": True}
        return Stream(self.url, urllib.request.urlopen(self._generate(body), timeout=60))

    def _generate(self, body: dict[str, Any]) -> urllib.request.Request:
        content = {"Content-Type": "application/json"}
        return urllib.request.Request(f"{self.url}/api/generate", json.dumps(body).encode(), content)

    def _paceline(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, str(ROOT / "paceline"), *arguments],
            env=self._environ,
            capture_output=True,
            text=True,
            timeout=READY_S,
        )


class Stream:
    """A request's stream as a client follows it: it resumes at its offset when the connection breaks."""

    def __init__(self, url: str, response: HTTPResponse, request_id: str | None = None, offset: int = 0) -> None:
        self._url = url
        self._response = response
        self._start = offset
        self.id = request_id or str(response.headers["X-Request-Id"])
        self.tokens: list[int] = []
        self.proposers: list[str] = []
        self.text = ""
        self.result: dict[str, Any] = {}
        self.reconnects = 0
        self.longest_gap_s = 0.0
        self.first_s: float | None = None  # since it began to be read

    @classmethod
    def at(cls, url: str, request_id: str, offset: int) -> Self:
        """Resume after `offset` tokens."""
        address = f"{url}/api/requests/{request_id}/stream?offset={offset}"
        return cls(url, urllib.request.urlopen(address, timeout=60), request_id, offset)

    def read(self, until: int | None = None) -> "Stream":
        """Read on, to the end or until there are `until` tokens."""
        started = last = time.monotonic()
        while not self.result and (until is None or len(self.tokens) < until):
            for kind, data, _ in self._events():
                now = time.monotonic()
                self.longest_gap_s, last = max(self.longest_gap_s, now - last), now
                if kind == "end":
                    self.result = data
                    self._response.close()
                    break
                assert kind == "tokens", (kind, data)
                self.first_s = self.first_s or now - started
                self._take(data)
                if until is not None and len(self.tokens) >= until:
                    break
            else:
                self._resume()
        return self

    def close(self) -> None:
        self._response.close()

    def _take(self, data: dict[str, Any]) -> None:
        assert data["offset"] == self._start + len(self.tokens), "a gap or a repetition"
        self.tokens += data["tokens"]
        self.proposers += data["proposers"]
        self.text += data["text"]

    def _events(self) -> Iterator[Any]:
        """Yield dispatched events until the connection ends, however it ends."""
        try:
            yield from parse(self._lines())
        except (OSError, HTTPException):
            return

    def _lines(self) -> Iterator[str]:
        since = time.monotonic()
        for line in self._response:  # heartbeats come through the longest silence
            if line.startswith(b"event:"):
                since = time.monotonic()
            assert time.monotonic() - since < RECOVERY_S, f"no token after {len(self.tokens)} for too long"
            yield line.decode().rstrip("\n")

    def _resume(self) -> None:
        self._response.close()
        self.reconnects += 1
        address = f"{self._url}/api/requests/{self.id}/stream?offset={self._start + len(self.tokens)}"

        def opened() -> HTTPResponse | None:
            try:
                return urllib.request.urlopen(address, timeout=60)  # type: ignore[no-any-return]
            except urllib.error.HTTPError as error:
                with error:
                    assert error.code == 503, error.read()
                return None
            except OSError:
                return None

        self._response = wait_for(opened, what="the web server to take the stream up again")


@contextmanager
def running(name: str, folder: Path, environ: dict[str, str]) -> Iterator[Cluster]:
    """Run a deployment for the block."""
    cluster = Cluster(name, folder, environ)
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()

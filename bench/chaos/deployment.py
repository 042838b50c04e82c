"""Give faults access to the deployment under test: its commands, processes, mailboxes, requests and Redis."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import redis

from app.config import ROOT, Settings
from app.errors import InstanceError, StoreUnavailable
from app.local.health import Health, check
from app.local.instance import Instance
from app.messages import FUSE, SETTLE, mailbox_of
from workers.deployment import Deployment

READY_S = 180.0


@dataclass(frozen=True, slots=True)
class Site:
    """A deployment under test, and the random numbers that faults draw."""

    instance: Instance
    deployment: Deployment
    draw: random.Random
    environ: Mapping[str, str] = field(default_factory=dict)  # of its processes, beside this process's
    other: Path | None = None  # a clone of another version
    complaints: list[str] = field(default_factory=list)  # broken promises that faults themselves saw

    @property
    def port(self) -> int:
        """Return the web server's port."""
        port = urlsplit(self.health().url or "").port
        assert port is not None
        return port

    def start(self, port: int, folder: Path = ROOT) -> None:
        """Start the stopped instance as before, perhaps with another clone's version."""
        paceline(self.instance, self.environ, "up", "-d", "--port", str(port), folder=folder)

    def health(self) -> Health:
        """Return the health that `./paceline status --json` prints."""
        return check(self.instance.name, self.instance.running(), self.deployment.settings.lease_s)

    def await_ready(self) -> float:
        """Wait until every role works again, in processes that exist; return the seconds. Raises TimeoutError.

        A process just killed seems well for as long as its last heartbeat holds.
        """
        started = time.monotonic()
        while (health := self.health()).problems or self.dead():
            if time.monotonic() - started > READY_S:
                raise TimeoutError(f"not ready after {READY_S:.0f} s: {'; '.join(health.problems)}")
            time.sleep(0.05)
        return time.monotonic() - started

    def dead(self) -> list[str]:
        """List nodes whose last heartbeat still holds but whose process is gone; ["redis"] when Redis is."""
        try:
            return [node.name for node in self.deployment.nodes.live() if not runs(node.info.get("pid"))]
        except StoreUnavailable:
            return ["redis"]

    def pids(self, role: str) -> list[int]:
        """Return the role's processes that have a heartbeat; where none has, those that the supervisor started."""
        with suppress(StoreUnavailable):
            if found := [node.info["pid"] for node in self.deployment.nodes.live(role) if runs(node.info.get("pid"))]:
                return found
        return list(self.health().processes[role])

    def signal(self, role: str, number: signal.Signals) -> list[int]:
        """Send a signal to the role's processes and return their pids."""
        pids = self.pids(role)
        send(pids, number)
        return pids

    @contextmanager
    def frozen(self, role: str) -> Iterator[None]:
        """Stop the role's processes while the block runs."""
        pids = self.signal(role, signal.SIGSTOP)
        try:
            yield
        finally:
            send(pids, signal.SIGCONT)


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to processes, some of which may be gone."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def paceline(instance: Instance, environ: Mapping[str, str], *words: str, folder: Path = ROOT) -> None:
    """Run a command of this clone, or of another, on the instance. Raises InstanceError when it fails."""
    own = {"PACELINE_KEYS": "", "PACELINE_STATE": str(instance.folder.parent)}  # the instance is ours alone
    command = [sys.executable, "-m", "app.cli.main"] if folder == ROOT else [str(folder / "paceline")]
    done = subprocess.run(
        [*command, *words, "--instance", instance.name],
        cwd=folder,
        env={**os.environ, **own, **environ},
        capture_output=True,
        text=True,
    )
    if done.returncode not in (0, 3):
        raise InstanceError(f"paceline {' '.join(words)}: {done.stderr.strip()}")


def enter(
    instance: Instance,
    settings: Settings,
    seed: int,
    environ: Mapping[str, str] | None = None,
    other: Path | None = None,
) -> Site:
    """Open a running instance for faults. Raises InstanceError when it does not run."""
    state = instance.running()
    if state is None:
        raise InstanceError(f"instance {instance.name!r} does not run")
    inside = {"redis_url": state.redis_url, "namespace": state.namespace}
    deployment = Deployment.open(settings.model_copy(update=inside))
    return Site(instance, deployment, random.Random(seed), environ or {}, other)


def runs(pid: object) -> bool:
    """Tell whether the process runs: neither gone nor a zombie of a stopped parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def mailboxes_of(site: Site) -> list[str]:
    """List the mailboxes of the live nodes, and those that nodes share."""
    nodes = [
        mailbox_of(node.kind, node.name) for node in site.deployment.nodes.live() if node.kind in ("verify", "draft")
    ]
    return [*nodes, FUSE, SETTLE]


def active(site: Site) -> Iterable[str]:
    """Return the ids of some running requests."""
    owners = [node.owner for node in site.deployment.nodes.live("verify")]
    return sorted(name for owner in owners for name in site.deployment.requests.owned(owner))[:16]


def client(site: Site) -> redis.Redis:
    """Connect to the deployment's Redis without retries."""
    assert site.deployment.settings.redis_url is not None
    return redis.Redis.from_url(site.deployment.settings.redis_url)

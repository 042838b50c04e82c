"""Give faults access to the deployment under test: its processes, mailboxes, requests and Redis."""

import os
import random
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import redis

from app.config import Settings
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

    def signal(self, role: str, number: signal.Signals) -> list[int]:
        """Send a signal to the role's processes and return their pids."""
        pids = list(self.health().processes[role])
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return pids

    @contextmanager
    def frozen(self, role: str) -> Iterator[None]:
        """Stop the role's processes while the block runs."""
        pids = self.signal(role, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)


def enter(instance: Instance, settings: Settings, seed: int) -> Site:
    """Open a running instance for faults. Raises InstanceError when it does not run."""
    state = instance.running()
    if state is None:
        raise InstanceError(f"instance {instance.name!r} does not run")
    inside = {"redis_url": state.redis_url, "namespace": state.namespace}
    return Site(instance, Deployment.open(settings.model_copy(update=inside)), random.Random(seed))


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

"""The deployment that `./paceline chaos` breaks, as the faults see it."""

import os
import random
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import redis

from app.errors import StoreUnavailable
from app.local.health import Health, check
from app.local.instance import Instance
from app.messages import FUSE, SETTLE, mailbox_of
from workers.deployment import Deployment

READY_S = 180.0


@dataclass(frozen=True, slots=True)
class Site:
    """The deployment under test."""

    instance: Instance
    deployment: Deployment
    draw: random.Random

    def health(self) -> Health:
        """What `./paceline status --json` says."""
        return check(self.instance.name, self.instance.running(), self.deployment.settings.lease_s)

    def await_ready(self) -> float:
        """Until every role gets on again, by processes that are there; seconds. Raises TimeoutError.

        A process just killed seems well for as long as its last heartbeat holds.
        """
        started = time.monotonic()
        while not ((health := self.health()).ready and not self.dead()):
            if time.monotonic() - started > READY_S:
                raise TimeoutError(f"not ready after {READY_S:.0f} s: {'; '.join(health.problems)}")
            time.sleep(0.05)
        return time.monotonic() - started

    def dead(self) -> list[str]:
        """Nodes whose last heartbeat still holds, and whose process is gone; or Redis."""
        try:
            return [node.name for node in self.deployment.nodes.live() if not runs(node.info.get("pid"))]
        except StoreUnavailable:
            return ["redis"]

    def signal(self, role: str, number: signal.Signals) -> list[int]:
        """Send a signal to the role's processes; their pids."""
        pids = list(self.health().processes[role])
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return pids


def runs(pid: object) -> bool:
    """Not gone, and no zombie, which its stopped parent leaves it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def mailboxes_of(site: Site) -> list[str]:
    """Those of the living, and those that they share."""
    nodes = [
        mailbox_of(node.kind, node.name) for node in site.deployment.nodes.live() if node.kind in ("verify", "draft")
    ]
    return [*nodes, FUSE, SETTLE]


def active(site: Site) -> Iterable[str]:
    """Some requests that run."""
    owners = [node.owner for node in site.deployment.nodes.live("verify")]
    return sorted(name for owner in owners for name in site.deployment.requests.owned(owner))[:16]


def client(site: Site) -> redis.Redis:
    """A connection to its Redis that tries nothing again."""
    assert site.deployment.settings.redis_url is not None
    return redis.Redis.from_url(site.deployment.settings.redis_url)

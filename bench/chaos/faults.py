"""Inject the faults of `./paceline chaos`: one function a fault, which returns when the fault itself is over.

The caller checks that the deployment recovers. Signals go only to processes that the supervisor of that very instance
started. A fault's docstring is its line in `./paceline chaos --list`.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

from app.config import ROOT
from app.local.process_specs import settings_environment
from bench.chaos import host, mail
from bench.chaos.deployment import READY_S, Site, client

ROLES = ("web", "control", "fuse", "draft", "verify", "beat", "redis")
FROZEN_S = 4.0  # longer than any lease
PAUSE_MS = 10_000
STARVED_S = 5.0
SECOND = "verify-2"
SHARED_S = 3.0  # for a second verifier to have requests of its own
Fault = Callable[[Site], None]


def _kill(role: str) -> Fault:
    def fault(site: Site) -> None:
        """Kill the process."""
        site.signal(role, signal.SIGKILL)

    return fault


def _freeze(role: str) -> Fault:
    def fault(site: Site) -> None:
        """Stop the process for longer than any lease lasts, then continue it."""
        with site.frozen(role):
            time.sleep(FROZEN_S)

    return fault


def _kill_one_of_two(site: Site) -> None:
    """Start a second verifier and kill the first: the second takes its requests over."""
    environ = {**os.environ, **settings_environment(site.deployment.settings)}
    command = [sys.executable, "-m", "workers.run", "verify", "--node", SECOND]
    log = site.instance.logs / f"{SECOND}.log"
    with log.open("wb") as out, subprocess.Popen(command, env=environ, cwd=ROOT, stdout=out, stderr=out) as second:
        try:
            _await(lambda: len(site.deployment.nodes.live("verify")) == 2, "no second verifier came")
            time.sleep(SHARED_S)
            site.signal("verify", signal.SIGKILL)
            _await(lambda: len(site.deployment.nodes.live("verify")) == 1, "the first verifier lives on")
            _await(lambda: len(site.deployment.nodes.live("verify")) == 2, "the first verifier does not come back")
        finally:
            second.terminate()
            _end(second)


def _end(process: "subprocess.Popen[bytes]") -> None:
    try:
        process.wait(READY_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _restart_all(site: Site) -> None:
    """Ask every process to stop, one role after another, as an upgrade would."""
    for role in ROLES:
        pids = {*site.signal(role, signal.SIGTERM)}
        _await(partial(_are_gone, site, role, pids), f"a {role} that was told to stop is still there")
        site.await_ready()


def _pause_redis(site: Site) -> None:
    """Let Redis answer no client for a while."""
    client(site).execute_command("CLIENT", "PAUSE", PAUSE_MS, "ALL")
    time.sleep(PAUSE_MS / 1000.0)


def _starve_redis(site: Site) -> None:
    """Leave no room for writes in Redis for a while."""
    redis = client(site)
    redis.config_set("maxmemory", 1)
    try:
        time.sleep(STARVED_S)
    finally:
        redis.config_set("maxmemory", 0)


def _slow_redis(site: Site) -> None:
    """Make Redis answer late: stop it for 50 of every 100 ms."""
    for _ in range(40):
        with site.frozen("redis"):
            time.sleep(0.05)
        time.sleep(0.05)


def _cut_connections(site: Site) -> None:
    """Cut every connection to Redis, again and again."""
    redis = client(site)
    for _ in range(5):
        redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        time.sleep(0.2)


FAULTS: dict[str, Fault] = {
    **{f"kill {role}": _kill(role) for role in ROLES},
    **{f"freeze {role}": _freeze(role) for role in ROLES},
    "kill one of two verifiers": _kill_one_of_two,
    "restart all": _restart_all,
    "pause redis": _pause_redis,
    "starve redis": _starve_redis,
    "slow redis": _slow_redis,
    "cut connections": _cut_connections,
    "garbage": mail.garbage,
    "stale and foreign": mail.stale_and_foreign,
    "replayed mail": mail.replayed,
    "broken tasks": mail.broken_tasks,
    "lies": mail.lying_trees,
    "lying drafter": mail.lying_drafter,
    "ring all": mail.ring_all,
    "half-open connections": host.half_open_connections,
    "half-open clients": host.half_open_clients,
    **{f"no memory for {role}": partial(host.starve, role=role) for role in ("verify", "draft")},
    "full disk": host.full_disk,
    "power loss": host.power_loss,
    "clock jumps": host.clock_jumps,
}


def _are_gone(site: Site, role: str, pids: set[int]) -> bool:
    return pids.isdisjoint(site.health().processes[role])


def _await(condition: Callable[[], bool], complaint: str) -> None:
    deadline = time.monotonic() + READY_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(complaint)
        time.sleep(0.05)

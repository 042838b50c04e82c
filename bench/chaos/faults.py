"""Inject the faults of `./paceline chaos`: one function a fault, which returns when the fault itself is over.

The caller checks that the deployment recovers. Signals go only to processes that the supervisor of that very instance
started, or that have a heartbeat in it. A fault's docstring is its line in `./paceline chaos --list`.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from app.config import ROOT
from app.local.process_specs import worker
from app.store.protocol import Node
from bench.chaos import host, load, mail
from bench.chaos.deployment import READY_S, Site, client, paceline, runs, send

ROLES = ("web", "control", "fuse", "draft", "verify", "beat", "redis")
FROZEN_S = 4.0  # longer than any lease
PAUSE_MS = 10_000
STARVED_S = 5.0
SECOND = "verify-2"
SHARED_S = 3.0  # for a second verifier, or another version, to have requests of its own
Fault = Callable[[Site], None]


def _kill(role: str) -> Fault:
    def fault(site: Site) -> None:
        """Kill the process."""
        _kill_all(site.pids(role))

    return fault


def _freeze(role: str) -> Fault:
    def fault(site: Site) -> None:
        """Stop the process for longer than any lease lasts, then continue it."""
        with site.frozen(role):
            time.sleep(FROZEN_S)

    return fault


def _kill_template(site: Site) -> None:
    """Kill the process that the supervisor started, which may have forked the one that serves."""
    state = site.instance.running()
    _kill_all([process.pid for process in state.processes["verify"]] if state else [])


@contextmanager
def _second_verifier(site: Site) -> Iterator[None]:
    """Run a second verifier during the block."""
    settings = site.deployment.settings
    spec = worker("verify", SECOND, settings, settings.verify_threads)
    log = site.instance.logs / f"{SECOND}.log"
    with (
        log.open("wb") as out,
        subprocess.Popen(spec.argv, env={**os.environ, **spec.env}, cwd=spec.cwd, stdout=out, stderr=out) as second,
    ):
        try:
            _await(lambda: len(site.deployment.nodes.live("verify")) == 2, "no second verifier came")
            time.sleep(SHARED_S)
            yield
        finally:
            second.terminate()
            _end(second)


def _kill_one_of_two(site: Site) -> None:
    """Kill the first of two verifiers: the second takes its requests over."""
    (killed,) = _first(site)
    _kill_all([killed.info["pid"]])
    _await(lambda: any(node.owner != killed.owner for node in _first(site)), "the first verifier does not come back")


def _first(site: Site) -> list[Node]:
    return [node for node in site.deployment.nodes.live("verify") if node.name != SECOND]


def _other_version(site: Site) -> None:
    """Stop this version, run the one of --other on the same state, and come back."""
    assert site.other is not None
    for folder in (site.other, ROOT):
        port = site.port
        paceline(site.instance, site.environ, "down")
        site.start(port, folder)
        site.await_ready()
        time.sleep(SHARED_S)


def _end(process: "subprocess.Popen[bytes]") -> None:
    try:
        process.wait(READY_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _restart_all(site: Site) -> None:
    """Ask every process to stop, one role after another, as an upgrade would."""
    for role in ROLES:
        _await(partial(_are_gone, site.signal(role, signal.SIGTERM)), f"a {role} that was told to stop is still there")
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
    "kill verify template": _kill_template,
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
    "slow connections": load.slow_connections,
    "overload": load.overload,
    "many streams": load.many_streams,
    "other version": _other_version,
}
# What runs beside the deployment from before a fault until its effects have been seen.
BESIDE: dict[str, Callable[[Site], AbstractContextManager[None]]] = {"kill one of two verifiers": _second_verifier}


def _kill_all(pids: Iterable[int]) -> None:
    """Kill processes and wait for their ends: until then they seem to be well."""
    send(pids, signal.SIGKILL)
    _await(partial(_are_gone, pids), "a killed process is still there")


def _are_gone(pids: Iterable[int]) -> bool:
    return not any(map(runs, pids))


def _await(condition: Callable[[], bool], complaint: str) -> None:
    deadline = time.monotonic() + READY_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(complaint)
        time.sleep(0.05)

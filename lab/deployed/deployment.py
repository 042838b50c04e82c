"""Run each way of drafting as a deployment over hosts of their own; all are started, and one at a time is awake.

One Redis serves them all, each under a namespace of its own. The verifier's host has everything but the drafters: the
verifier on one core, the rest on the other, which the drafters' hosts share. Drafters reach Redis over their cable, by
way of a process that holds bytes back.
"""

import os
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Listed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from app.config import Settings
from app.counters import series
from app.errors import PacelineError
from app.local.ports import HOST as LOOPBACK
from app.local.ports import any_free
from app.local.process_specs import worker
from app.local.redis_server import find_server
from app.messages import Status
from app.metrics import GROUP, QUEUE_WAIT, STEP, TREE
from app.request import GenerateRequest
from app.store.protocol import Snapshot
from bench.load.watcher import cpu_s
from lab.deployed import adaspec_drafter, paced_verifier
from lab.deployed.delay import measured_ms
from lab.deployed.network import Host, entered, here, star
from lab.load import Block
from lab.ways import Variant
from workers.deployment import Deployment

REDIS_PORT, DELAYED_PORT = 6379, 6380  # of namespaces that nothing else is in
ROLES = ("control", "fuse", "verify", "beat")  # of the verifier's host
READY_S, ANSWER_S, STOP_S = 300.0, 120.0, 15.0  # longest waits
SETTLED_S = 1.0  # after the last heartbeat came: by then the verifier has seen who drafts
LOOK_S = 0.01
TIMES = {STEP.name: "step", TREE.name: "tree", QUEUE_WAIT.name: "mail waits"}
KV_BYTES = 2**29  # a verifier's cache: there are as many verifiers as ways


@dataclass(frozen=True, slots=True)
class Place:
    """The hosts, their cores and cables: `nodes` are the drafters of each drafter's host.

    With `paced`, a file of step costs, verifiers take these, and all hosts are this machine, whose cores all share.
    `texts`: a file of `lab.deployed.remembered`, which such a verifier answers from.
    """

    nodes: tuple[tuple[str, ...], ...]
    hop_ms: float = 0.0  # by which bytes are held back, one way
    bits_per_s: float = 0.0
    cores: tuple[int | None, int | None] = (None, None)  # the verifier's, and everything else's
    paced: Path | None = None
    texts: Path | None = None


class _Redis(NamedTuple):
    password: str
    port: int
    nodes_port: int  # for drafters' hosts
    pid: int

    def url(self, host: str = LOOPBACK, port: int | None = None) -> str:
        return f"redis://:{self.password}@{host}:{port or self.port}/0"


@dataclass(slots=True)
class DeployedRunner:
    """A way's processes, and its store and mailboxes."""

    name: str
    deployment: Deployment
    fields: dict[str, Any]  # of requests, beside the prompt
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    watched: dict[str, int] = field(default_factory=dict)  # process ids whose seconds are counted
    seconds: Counter[str] = field(default_factory=Counter)  # of cores, by process, in all blocks
    nodes: int = 0  # processes that have a heartbeat
    known: dict[str, Any] = field(default_factory=dict)  # the report, when it went to sleep last

    def run(self, block: Block) -> list[Snapshot]:
        """Wake the processes, run a block, and let them sleep again; return the ended requests.

        Raises TimeoutError, and PacelineError for a request that failed.
        """
        self._wake()
        before = self._cpu_s()
        try:
            return self._ask(block)
        finally:
            self.seconds.update(self._cpu_s())
            self.seconds.subtract(before)
            self.sleep()

    def report(self) -> dict[str, Any]:
        """Return the part of the rounds for which a model drafted, mean milliseconds, and what each node did."""
        return self.known

    def wait_ready(self) -> None:
        """Wait until all processes have heartbeats, and for one beat more. Raises TimeoutError, RuntimeError."""
        wait(lambda: self._are_alive() and len(self.deployment.nodes.live()) >= self.nodes, READY_S, self.name)
        time.sleep(SETTLED_S)

    def sleep(self) -> None:
        """Stop the processes where they are, and keep the report."""
        (verifier,) = self.deployment.nodes.live("verify")
        rounds = verifier.info["later_rounds"]
        self.known = {
            "model_rounds": round(verifier.info["model_rounds"] / rounds, 3) if rounds else 0.0,
            "mean_ms": self._means(),
            "nodes": self._drafters(),
            "core_s": {name: round(seconds, 2) for name, seconds in self.seconds.items()},
            **{name: verifier.info[name] for name in ("paced",) if name in verifier.info},
        }
        for process in self.processes.values():
            process.send_signal(signal.SIGSTOP)

    def _wake(self) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
        self.wait_ready()

    def _cpu_s(self) -> dict[str, float]:
        return {name: cpu_s(pid) for name, pid in self.watched.items()}

    def _ask(self, block: Block) -> list[Snapshot]:
        ids: list[str] = []
        running: set[str] = set()
        ended: dict[str, Snapshot] = {}
        began_s = last_s = time.monotonic()
        while len(ended) < len(block.requests):
            while block.may_start(len(ids), len(running), time.monotonic() - began_s):
                request = GenerateRequest(prompt=block.requests[len(ids)][1], **self.fields)
                ids.append(self.deployment.submit(request).id)
                running.add(ids[-1])
            for request_id in [*running]:
                end = self.deployment.requests.snapshot(request_id)
                if end.status is not Status.ACTIVE:
                    if end.error is not None:
                        raise PacelineError(f"{self.name}: {end.error}")
                    ended[request_id], last_s = end, time.monotonic()
                    running.remove(request_id)
            if running and time.monotonic() - last_s > ANSWER_S:
                raise TimeoutError(f"{self.name}: no request ended for {ANSWER_S:.0f} s")
            time.sleep(LOOK_S)
        return [ended[request_id] for request_id in ids]

    def _drafters(self) -> dict[str, dict[str, Any]]:
        names = ("host", "drafters", "shared_guesses")
        return {
            node.name: {name: node.info[name] for name in names if name in node.info}
            for node in self.deployment.nodes.live("draft")
        }

    def _means(self) -> dict[str, float]:
        found = {}
        for name, sums in self.deployment.shared_stats.load(GROUP).items():
            metric, labels = series(name) or ("", ())
            if metric in TIMES and (count := sum(sums[:-1])):
                found[" ".join((TIMES[metric], *labels))] = round(1e3 * sums[-1] / count, 3)
        return found

    def _are_alive(self) -> bool:
        if any(process.poll() is not None for process in self.processes.values()):
            raise RuntimeError(f"{self.name}: a process ended; see its log")
        return True


@contextmanager
def opened(
    ways: Listed[Variant], settings: Settings, place: Place, folder: Path, fields: dict[str, Any]
) -> Iterator[tuple[dict[str, DeployedRunner], float]]:
    """Yield a sleeping deployment for each way, and the measured milliseconds of a hop; logs go to `folder`.

    Raises OSError, TimeoutError, RuntimeError where hosts or processes do not start, ValueError for a way that
    cannot run there.
    """
    own = {way.name: settings_of(way, settings) for way in ways}
    if place.paced is None and any(way.ends_as for way in ways):
        raise ValueError("adaspec needs --paced: its rule reads the target's step costs")
    with ExitStack() as stack:
        prefix = f"paceline-{os.getpid()}"
        count = len(place.nodes)
        hub, hosts = here(count) if place.paced else stack.enter_context(star(prefix, count, place.bits_per_s))
        redis = _start_redis(stack, hub, place, folder, secrets.token_urlsafe(16))
        with entered(hosts[0]):
            hop_ms = measured_ms((hosts[0].hub, redis.nodes_port))
        with entered(hub):
            found: dict[str, DeployedRunner] = {}
            for i, way in enumerate(ways):
                changes = {
                    "redis_url": redis.url(),
                    "namespace": f"way-{i}",
                    "verify_threads": 1,
                    "draft_threads": 1,
                    "kv_bytes": settings.kv_bytes or KV_BYTES,
                }
                runner = DeployedRunner(way.name, Deployment.open(own[way.name].model_copy(update=changes)), fields)
                stack.callback(runner.deployment.close)
                _start_way(stack, runner, way, hub, hosts, place, folder, redis)
                found[way.name] = runner
            yield found, hop_ms


def settings_of(way: Variant, settings: Settings) -> Settings:
    """Return a way's settings. Raises ValueError where settings cannot say what it changes."""
    if way.model_free or way.without or not way.is_steered or way.policy:
        raise ValueError(f"{way.name!r} cannot be deployed: no setting says what it changes")
    changes = dict(way.settings)
    if way.model_free is not None:
        changes["model_free"] = False
    if way.drafters is not None:
        changes["drafters"] = tuple(one for one in settings.drafters if Path(one).name in way.drafters)
    return settings.changed(**changes)


def wait(condition: Callable[[], object], limit_s: float, what: str) -> None:
    until_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > until_s:
            raise TimeoutError(f"waited in vain for {what}")
        time.sleep(0.05)


def stop(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGCONT)
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _start_redis(stack: ExitStack, hub: Host, place: Place, folder: Path, password: str) -> _Redis:
    """Start Redis and what holds bytes back, on the drafters' core: they go first there, as if on no drafter's core.

    On this machine nothing goes first. Nothing holds bytes back for hops of 0.
    """
    config, log = folder / "redis.conf", folder / "redis.log"
    port = any_free() if hub.is_here else REDIS_PORT
    bind = LOOPBACK if hub.is_here else "0.0.0.0"  # nosec B104: of a namespace
    lines = (f"bind {bind}", f"port {port}", f"requirepass {password}", 'save ""', "appendonly no")
    with open(os.open(config, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write("\n".join((*lines, f'dir "{folder}"', "")))
    core = place.cores[1]
    process = hub.start(log, {}, str(find_server()), str(config), core=core, goes_first=True)
    stack.callback(stop, process)
    wait(lambda: "eady to accept" in log.read_text(), STOP_S, "Redis")
    if not place.hop_ms:
        return _Redis(password, port, port, process.pid)
    held_port = any_free() if hub.is_here else DELAYED_PORT
    delayed = (sys.executable, "-m", "lab.deployed.delay", str(held_port), str(port), str(place.hop_ms))
    delay = hub.start(folder / "delay.log", {}, *delayed, core=core, goes_first=True)
    stack.callback(stop, delay)
    with entered(hub):
        wait(lambda: _answers(held_port), STOP_S, "the process that holds bytes back")
    return _Redis(password, port, held_port, process.pid)


def _answers(port: int) -> bool:
    try:
        measured_ms(("127.0.0.1", port))
    except OSError:
        return False
    return True


def _start_way(
    stack: ExitStack,
    runner: DeployedRunner,
    way: Variant,
    hub: Host,
    hosts: list[Host],
    place: Place,
    folder: Path,
    redis: _Redis,
) -> None:
    """Start a way's processes, and let them sleep once they are ready: the next way's start alone, too."""
    settings = runner.deployment.settings
    services = [(hub, worker(role, f"{role}-1", settings, 1), place.cores[role != "verify"]) for role in ROLES]
    if settings.plan.drafts:
        for i, (host, names) in enumerate(zip(hosts, place.nodes, strict=True)):
            drafters = tuple(name for name in names if name in settings.drafters)
            url = redis.url(host.hub, redis.nodes_port)
            own = settings.model_copy(update={"drafters": drafters, "redis_url": url, "machine": host.name})
            if drafters:
                services.append((host, worker("draft", f"draft-{i + 1}", own, 1), place.cores[1]))
    for host, service, core in services:
        log = folder / f"{settings.namespace}-{service.name}.log"
        argv = service.argv
        if place.paced and service.role == "verify":
            argv = (sys.executable, "-m", paced_verifier.__name__, str(place.paced.absolute()), service.name)
            argv += () if place.texts is None else (str(place.texts.absolute()),)
        if place.paced and service.role == "draft" and way.ends_as:
            argv = (sys.executable, "-m", adaspec_drafter.__name__, str(place.paced.absolute()), service.name)
        process = runner.processes[service.name] = host.start(log, service.env, *argv, core=core)
        stack.callback(stop, process)
        if place.paced:
            runner.watched |= {service.name: process.pid, "redis": redis.pid}
    runner.nodes = len(services)
    runner.wait_ready()
    runner.sleep()

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
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Listed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.config import Settings
from app.counters import series
from app.errors import PacelineError
from app.local.process_specs import worker
from app.local.redis_server import find_server
from app.messages import Status
from app.metrics import GROUP, QUEUE_WAIT, STEP, TREE
from app.request import GenerateRequest
from app.store.protocol import Snapshot
from lab.deployed.delay import measured_ms
from lab.deployed.network import Host, entered, star
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
    """The hosts, their cores and cables: `nodes` are the drafters of each drafter's host."""

    nodes: tuple[tuple[str, ...], ...]
    hop_ms: float  # by which bytes are held back, one way
    bits_per_s: float
    cores: tuple[int, int]  # the verifier's, and everything else's


@dataclass(slots=True)
class DeployedRunner:
    """A way's processes, and its store and mailboxes."""

    name: str
    deployment: Deployment
    max_tokens: int
    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    nodes: int = 0  # processes that have a heartbeat
    known: dict[str, Any] = field(default_factory=dict)  # the report, when it went to sleep last

    def run(self, block: Block) -> list[Snapshot]:
        """Wake the processes, run a block, and let them sleep again; return the ended requests.

        Raises TimeoutError, and PacelineError for a request that failed.
        """
        self._wake()
        try:
            return self._ask(block)
        finally:
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
        }
        for process in self.processes:
            process.send_signal(signal.SIGSTOP)

    def _wake(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGCONT)
        self.wait_ready()

    def _ask(self, block: Block) -> list[Snapshot]:
        ids: list[str] = []
        running: set[str] = set()
        ended: dict[str, Snapshot] = {}
        began_s = last_s = time.monotonic()
        while len(ended) < len(block.requests):
            while block.may_start(len(ids), len(running), time.monotonic() - began_s):
                request = GenerateRequest(prompt=block.requests[len(ids)][1], max_tokens=self.max_tokens)
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
        if any(process.poll() is not None for process in self.processes):
            raise RuntimeError(f"{self.name}: a process ended; see its log")
        return True


@contextmanager
def opened(
    ways: Listed[Variant], settings: Settings, place: Place, folder: Path, max_tokens: int
) -> Iterator[tuple[dict[str, DeployedRunner], float]]:
    """Yield a sleeping deployment for each way, and the measured milliseconds of a hop; logs go to `folder`.

    Raises OSError, TimeoutError, RuntimeError where hosts or processes do not start, ValueError for a way that only a
    simulation has.
    """
    own = {way.name: settings_of(way, settings) for way in ways}
    with ExitStack() as stack:
        prefix = f"paceline-{os.getpid()}"
        hub, hosts = stack.enter_context(star(prefix, len(place.nodes), place.bits_per_s))
        password = secrets.token_urlsafe(16)
        _start_redis(stack, hub, place, folder, password)
        with entered(hosts[0]):
            hop_ms = measured_ms((hosts[0].hub, DELAYED_PORT))
        with entered(hub):
            found: dict[str, DeployedRunner] = {}
            for i, way in enumerate(ways):
                changes = {
                    "redis_url": _url(password, "127.0.0.1", REDIS_PORT),
                    "namespace": f"way-{i}",
                    "verify_threads": 1,
                    "draft_threads": 1,
                    "kv_bytes": settings.kv_bytes or KV_BYTES,
                }
                runner = DeployedRunner(way.name, Deployment.open(own[way.name].model_copy(update=changes)), max_tokens)
                stack.callback(runner.deployment.close)
                _start_way(stack, runner, hub, hosts, place, folder, password)
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
    """Return when the condition holds. Raises TimeoutError."""
    until_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > until_s:
            raise TimeoutError(f"waited in vain for {what}")
        time.sleep(0.05)


def stop(process: "subprocess.Popen[bytes]") -> None:
    """End a process, awake or not."""
    process.send_signal(signal.SIGCONT)
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _url(password: str, host: str, port: int) -> str:
    return f"redis://:{password}@{host}:{port}/0"


def _start_redis(stack: ExitStack, hub: Host, place: Place, folder: Path, password: str) -> None:
    """Start Redis and what holds bytes back, on the drafters' core: they go first there, as if on no drafter's core."""
    config, log = folder / "redis.conf", folder / "redis.log"
    lines = ("bind 0.0.0.0", f"port {REDIS_PORT}", f"requirepass {password}", 'save ""', "appendonly no")
    with open(os.open(config, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write("\n".join((*lines, f'dir "{folder}"', "")))
    core = place.cores[1]
    stack.callback(stop, hub.start(log, {}, str(find_server()), str(config), core=core, goes_first=True))
    wait(lambda: "eady to accept" in log.read_text(), STOP_S, "Redis")
    hold = ("--listen", f"0.0.0.0:{DELAYED_PORT}", "--to", f"127.0.0.1:{REDIS_PORT}", "--hop-ms", str(place.hop_ms))
    delayed = (sys.executable, "-m", "lab.deployed.delay", *hold)
    delay = hub.start(folder / "delay.log", {}, *delayed, core=core, goes_first=True)
    stack.callback(stop, delay)
    with entered(hub):
        wait(lambda: _answers(DELAYED_PORT), STOP_S, "the process that holds bytes back")


def _answers(port: int) -> bool:
    try:
        measured_ms(("127.0.0.1", port))
    except OSError:
        return False
    return True


def _start_way(
    stack: ExitStack, runner: DeployedRunner, hub: Host, hosts: list[Host], place: Place, folder: Path, password: str
) -> None:  # fmt: skip
    """Start a way's processes, and let them sleep once they are ready: the next way's start alone, too."""
    settings = runner.deployment.settings
    services = [(hub, worker(role, f"{role}-1", settings, 1), place.cores[role != "verify"]) for role in ROLES]
    if settings.plan.drafts:
        for i, (host, names) in enumerate(zip(hosts, place.nodes, strict=True)):
            url = _url(password, host.hub, DELAYED_PORT)
            drafters = tuple(name for name in names if name in settings.drafters)
            own = settings.model_copy(update={"drafters": drafters, "redis_url": url})
            if drafters:
                services.append((host, worker("draft", f"draft-{i + 1}", own, 1), place.cores[1]))
    for host, service, core in services:
        log = folder / f"{settings.namespace}-{service.name}.log"
        process = host.start(log, service.env, *service.argv, core=core)
        stack.callback(stop, process)
        runner.processes.append(process)
    runner.nodes = len(services)
    runner.wait_ready()
    runner.sleep()

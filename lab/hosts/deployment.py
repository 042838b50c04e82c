"""Start one deployment for each arm over hosts of their own, all at once, of which only one is awake.

One Redis serves them all, each under a namespace of its own. The verifier's host has everything but
the drafters: the verifier on one core, the rest on the other, which the drafters' hosts share. Drafters
reach Redis over their cable, by way of a process that holds bytes back.
"""

import os
import secrets
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from collections.abc import Sequence as Listed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from app.config import Settings
from app.counters import series
from app.errors import PacelineError
from app.local.children import Service
from app.local.process_specs import worker
from app.local.redis_server import find_server
from app.messages import Status
from app.metrics import GROUP, QUEUE_WAIT, STEP, TREE
from app.request import GenerateRequest
from app.store.protocol import Snapshot
from lab.hosts.delay import measured_ms
from lab.hosts.network import Host, entered, star
from workers.deployment import Deployment

REDIS_PORT, DELAYED_PORT = 6379, 6380  # of namespaces that nothing else is in
ROLES = ("control", "fuse", "verify", "beat")  # of the verifier's host
READY_S, ANSWER_S, STOP_S = 300.0, 120.0, 15.0  # longest waits
SETTLED_S = 1.0  # after the last heartbeat came: by then the verifier has seen who drafts
LOOK_S = 0.01
TIMES = {STEP.name: "step", TREE.name: "tree", QUEUE_WAIT.name: "mail waits"}
KV_BYTES = 2**29  # a verifier's cache: there are as many verifiers as arms


@dataclass(frozen=True, slots=True)
class Place:
    """The hosts, their cores and cables: `nodes` are the drafters of each drafter's host."""

    nodes: tuple[tuple[str, ...], ...]
    hop_ms: float  # by which bytes are held back, one way
    bits_per_s: float
    cores: tuple[int, int]  # the verifier's, and everything else's


@dataclass(slots=True)
class ArmDeployment:
    """An arm's processes, and its store and mailboxes."""

    name: str
    deployment: Deployment
    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    nodes: int = 0  # processes that have a heartbeat
    mean_ms: dict[str, float] = field(default_factory=dict)  # of its steps, trees and mail, until then
    model_rounds: float | None = None  # part of the rounds until then for which a model was asked; None: no round yet
    seen: dict[str, dict[str, Any]] = field(default_factory=dict)  # by drafters' node, when it went to sleep last

    def wake(self) -> None:
        """Let its processes run, and return when all have heartbeats. Raises TimeoutError."""
        for process in self.processes:
            process.send_signal(signal.SIGCONT)
        self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until all processes have heartbeats, and for one beat more. Raises TimeoutError, RuntimeError."""
        wait(lambda: self._are_alive() and len(self.deployment.nodes.live()) >= self.nodes, READY_S, self.name)
        time.sleep(SETTLED_S)

    def sleep(self) -> None:
        """Stop its processes where they are, and keep in `seen` what the drafters' nodes said of their work."""
        self.seen = self._drafters()
        self.mean_ms = self._means()
        self.model_rounds = self._model_rounds()
        for process in self.processes:
            process.send_signal(signal.SIGSTOP)

    def ask(
        self, requests: Listed[GenerateRequest], streams: int, arrivals_s: Listed[float] | None = None
    ) -> list[Snapshot]:
        """Run requests to their ends; return the ends in order.

        So many at once, each followed by the next; or each at one of these seconds, whatever has ended.
        Raises TimeoutError, and PacelineError for a request that failed.
        """
        waiting, running = deque(enumerate(requests)), dict[int, str]()
        ended: dict[int, Snapshot] = {}
        began_s = last_s = time.monotonic()

        def may_start() -> bool:
            if arrivals_s is None:
                return len(running) < streams
            return time.monotonic() - began_s >= arrivals_s[waiting[0][0]]

        while waiting or running:
            while waiting and may_start():
                number, request = waiting.popleft()
                running[number] = self.deployment.submit(request).id
            for number, request_id in [*running.items()]:
                end = self.deployment.requests.snapshot(request_id)
                if end.status is not Status.ACTIVE:
                    if end.error is not None:
                        raise PacelineError(f"{self.name}: {end.error}")
                    ended[number], last_s = end, time.monotonic()
                    del running[number]
            if running and time.monotonic() - last_s > ANSWER_S:
                raise TimeoutError(f"{self.name}: no request ended for {ANSWER_S:.0f} s")
            time.sleep(LOOK_S)
        return [ended[number] for number in range(len(requests))]

    def _drafters(self) -> dict[str, dict[str, Any]]:
        names = ("host", "drafters", "shared_guesses")
        return {
            node.name: {name: node.info[name] for name in names if name in node.info}
            for node in self.deployment.nodes.live("draft")
        }

    def _model_rounds(self) -> float | None:
        (verifier,) = self.deployment.nodes.live("verify")
        rounds = verifier.info["later_rounds"]
        return round(verifier.info["model_rounds"] / rounds, 3) if rounds else None

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
def arms_running(
    arms: Mapping[str, Settings], place: Place, folder: Path, unfused: Collection[str] = ()
) -> Iterator[tuple[dict[str, ArmDeployment], float]]:
    """Yield a sleeping deployment for each arm, and the milliseconds of a hop as they are; logs go to `folder`.

    `unfused`: the arms whose fusers hand on one drafter's draft (`lab.hosts.without_fusion`).
    Raises OSError, TimeoutError, RuntimeError where hosts or processes do not start.
    """
    with ExitStack() as stack:
        prefix = f"paceline-{os.getpid()}"
        hub, hosts = stack.enter_context(star(prefix, len(place.nodes), place.bits_per_s))
        password = secrets.token_urlsafe(16)
        _start_redis(stack, hub, place, folder, password)
        with entered(hosts[0]):
            hop_ms = measured_ms((hosts[0].hub, DELAYED_PORT))
        with entered(hub):
            opened: dict[str, ArmDeployment] = {}
            for i, (name, settings) in enumerate(arms.items()):
                own = settings.model_copy(
                    update={
                        "redis_url": _url(password, "127.0.0.1", REDIS_PORT),
                        "namespace": f"arm-{i}",
                        "verify_threads": 1,
                        "draft_threads": 1,
                        "kv_bytes": settings.kv_bytes or KV_BYTES,
                    }
                )
                opened[name] = _start_arm(
                    stack, name, own, hub, hosts, place, folder, password, is_fused=name not in unfused
                )
            yield opened, hop_ms


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
    delayed = (sys.executable, "-m", "lab.hosts.delay", *hold)
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


def _start_arm(
    stack: ExitStack, name: str, settings: Settings, hub: Host, hosts: list[Host], place: Place, folder: Path,
    password: str, *, is_fused: bool = True,
) -> ArmDeployment:  # fmt: skip
    """Start an arm's processes, and let them sleep once they are ready: the next one starts alone, too."""
    arm = ArmDeployment(name, Deployment.open(settings))
    stack.callback(arm.deployment.close)
    services = [(hub, worker(role, f"{role}-1", settings, 1), place.cores[role != "verify"]) for role in ROLES]
    if settings.plan.drafts:
        for i, (host, names) in enumerate(zip(hosts, place.nodes, strict=True)):
            url = _url(password, host.hub, DELAYED_PORT)
            own = settings.model_copy(update={"drafters": names, "redis_url": url})
            services.append((host, worker("draft", f"draft-{i + 1}", own, 1), place.cores[1]))
    for host, fused, core in services:
        service = fused if is_fused else _unfused(fused)
        process = _start(host, service, folder / f"{settings.namespace}-{service.name}.log", core)
        stack.callback(stop, process)
        arm.processes.append(process)
    arm.nodes = len(services)
    arm.wait_ready()
    arm.sleep()
    return arm


def _unfused(service: Service) -> Service:
    """Return the process with the fuser of the arms without fusion, if it has any."""
    python, _, _, *rest = service.argv  # python -m workers.run ...
    return replace(service, argv=(python, "-m", "lab.hosts.without_fusion", *rest))


def _start(host: Host, service: Service, log: Path, core: int) -> "subprocess.Popen[bytes]":
    return host.start(log, service.env, *service.argv, core=core)

"""Make hosts on one machine: network namespaces, a cable from the first to each other one, processes on them.

Needs root, iproute2 and util-linux; `lacking` says what is missing. All addresses are for examples
(RFC 5737), of no real network, and no namespace reaches another but by its cable.
"""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from app.config import ROOT
from app.local.ports import HOST as LOOPBACK

TOOLS = ("ip", "tc", "unshare", "hostname", "taskset", "chrt")
MOST_HOSTS = 32  # beside the first: that many cables have addresses
BURST = "16kb"  # of tbf: ten packets at once
QUEUED = "50ms"  # of tbf: what waits longer is dropped
NAMESPACES = Path("/run/netns")
CLONE_NEWNET = 0x40000000


@dataclass(frozen=True, slots=True)
class Host:
    """A network namespace; its processes have its name as host name.

    `address` is its own on its cable; `hub` is the first host's on it ("" for the first one). `is_here`: this machine
    instead.
    """

    name: str
    address: str
    hub: str = ""
    is_here: bool = False

    def command(self, *command: str, core: int | None = None, goes_first: bool = False) -> list[str]:
        """Return the command line that runs `command` there, on one core if that is named.

        With `goes_first` it waits for no process of the core that is without it, as if the core were its own.
        """
        pinned = () if core is None else ("taskset", "--cpu-list", str(core))
        first = ("chrt", "--rr", "1") if goes_first else ()
        if self.is_here:
            return [*pinned, *command]
        named = f'hostname {self.name} && exec "$@"'
        there = ("ip", "netns", "exec", self.name, "unshare", "--uts", "sh", "-c", named, "sh")
        return [*there, *first, *pinned, *command]

    def start(
        self, log: Path, environ: Mapping[str, str], *command: str, core: int | None = None, goes_first: bool = False
    ) -> "subprocess.Popen[bytes]":
        """Start a process there; its process id is the command's own. The rest is `command`'s."""
        with log.open("wb") as out:
            return subprocess.Popen(
                self.command(*command, core=core, goes_first=goes_first),
                env={**os.environ, **environ},
                cwd=ROOT,
                stdout=out,
                stderr=subprocess.STDOUT,
            )


def lacking() -> str | None:
    """Return why this machine cannot have such hosts; None if it can."""
    if os.geteuid() != 0:
        return "needs root, for network namespaces"
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"needs {', '.join(missing)} (packages iproute2, util-linux and hostname)"
    return None


@contextmanager
def star(prefix: str, count: int, bits_per_s: float | None = None) -> Iterator[tuple[Host, list[Host]]]:
    """Yield a host and `count` others, each on a cable to it of this rate both ways (None: as fast as it is).

    Names begin with `prefix`. Raises OSError where the machine refuses.
    """
    if not 1 <= count <= MOST_HOSTS:
        raise ValueError(f"1 to {MOST_HOSTS} hosts, not {count}")
    names = [f"{prefix}-v", *(f"{prefix}-d{i + 1}" for i in range(count))]
    others = [Host(name, f"192.0.2.{4 * i + 2}", f"192.0.2.{4 * i + 1}") for i, name in enumerate(names[1:])]
    with ExitStack() as stack:
        for name in names:
            _run("ip", "netns", "add", name)
            stack.callback(_run, "ip", "netns", "del", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
        for i, host in enumerate(others):
            _lay_cable(names[0], f"cable{i + 1}", host, bits_per_s)
        yield Host(names[0], others[0].hub), others


def here(count: int) -> tuple[Host, list[Host]]:
    """Return a host and `count` others that are all this machine, without cables."""
    hub, *others = (Host(f"here-{i}", LOOPBACK, LOOPBACK, is_here=True) for i in range(count + 1))
    return hub, others


def _lay_cable(hub: str, device: str, host: Host, bits_per_s: float | None) -> None:
    peer = ("peer", "name", "cable", "netns", host.name)
    _run("ip", "-n", hub, "link", "add", device, "type", "veth", *peer)
    for name, end, address in ((hub, device, host.hub), (host.name, "cable", host.address)):
        _run("ip", "-n", name, "address", "add", f"{address}/30", "dev", end)
        _run("ip", "-n", name, "link", "set", end, "up")
        if bits_per_s is not None:
            rate = ("rate", f"{bits_per_s:.0f}bit", "burst", BURST, "latency", QUEUED)
            _run("tc", "-n", name, "qdisc", "add", "dev", end, "root", "tbf", *rate)


@contextmanager
def entered(host: Host) -> Iterator[None]:
    """Let this thread, and those that it starts meanwhile, connect as from `host`."""
    if host.is_here:
        yield
        return
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    there = os.open(NAMESPACES / host.name, os.O_RDONLY)
    try:
        _enter(there)
        try:
            yield
        finally:
            _enter(own)
    finally:
        os.close(own)
        os.close(there)


def _enter(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")

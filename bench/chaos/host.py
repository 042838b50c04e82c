"""Inject faults below the processes: in their memory, disk, clock, connections, and the machine's power.

Each needs something of the machine that not every machine allows; `lacking` says what is missing. A fault's docstring
is its line in `./paceline chaos --list`.
"""

import ctypes
import os
import resource
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Collection, Iterator
from collections.abc import Sequence as Listed
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from app.local.instance import Instance
from app.store.keys import Keys
from bench.chaos.deployment import Site, client, runs, send

WORKERS = ("web", "control", "fuse", "draft", "verify", "beat")
STARVED_S = 5.0
POWERLESS_S = 0.7
LOOK_S = 0.003
DISK_BYTES = 192 * 2**20
SPARE_BYTES = 2**20
JUMPS_S = (3600.0, -3600.0, 3 * 86400.0, 0.0)  # of the wall clock, from what it really is
CLOCK_FILE = "clock"
CLOCK = Path(__file__).parent / "clock"
PIDFD_GETFD = 438  # on every architecture; Python has no name for it
SO_ATTACH_FILTER = 26
DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)  # a BPF program: return 0, which is how much of a packet is let in


def lacking(fault: str, other: Path | None = None) -> str | None:
    """Return why this machine cannot have the fault; None if it can. `other`: a clone of another version."""
    if fault == "other version" and other is None:
        return "needs --other"
    if fault in ("full disk", "half-open connections", "half-open clients") and os.geteuid() != 0:
        return "needs root"
    return None


@contextmanager
def prepared(instance: Instance, faults: Collection[str]) -> Iterator[dict[str, str]]:
    """Prepare the host for these faults while the instance runs; yield its processes' extra environment variables.
    Raises CalledProcessError when a file system for "full disk" cannot be mounted."""
    instance.folder.mkdir(parents=True, exist_ok=True)
    has_disk = "full disk" in faults
    if has_disk:  # first, for it hides what lies in the folder
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", instance.folder], check=True)
    environ = _clock(instance) if "clock jumps" in faults else {}
    if "power loss" in faults:
        environ["PACELINE_DURABLE"] = "true"  # else the requests of the last second are lost with it, as documented
    try:
        yield environ
    finally:
        if has_disk:
            subprocess.run(["umount", "-l", instance.folder], check=True)  # a file may still be open for a moment


def power_loss(site: Site) -> None:
    """Kill everything at once, lose what Redis' file did not have on the disk yet, and start again.

    Redis writes to its disk each second, and sooner while a client waits for that: a new request does, and is accepted
    once it is safe. So nothing older than the last new request can be lost; all that came after it is.
    """
    state = site.instance.running()
    assert state is not None
    port, file, redis = site.port, _append_only_file(site), client(site)
    pids = [
        pid for role in ("redis", *WORKERS) for pid in (*site.pids(role), *(one.pid for one in state.processes[role]))
    ]
    active, known = Keys(site.deployment.settings.namespace).active, set[object]()
    size, until = 0, time.monotonic() + POWERLESS_S
    while time.monotonic() < until:
        if (found := set(redis.zrange(active, 0, -1))) - known or not size:
            known |= found
            size = file.stat().st_size
        time.sleep(LOOK_S)
    _end([*pids, state.supervisor.pid])
    os.truncate(file, size)
    site.start(port)


def full_disk(site: Site) -> None:
    """Fill the disk of the state folder: Redis' file, logs and all else."""
    ballast = site.instance.folder / "ballast"
    try:
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(2**12))
        time.sleep(STARVED_S)
    finally:
        ballast.unlink()


def starve(site: Site, role: str) -> None:
    """Give the role's processes no more memory for a while."""
    pids = site.pids(role)
    limits = {pid: resource.prlimit(pid, resource.RLIMIT_AS) for pid in pids}
    for pid, (_, hard) in limits.items():
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
        resource.prlimit(pid, resource.RLIMIT_AS, (pages * resource.getpagesize() + SPARE_BYTES, hard))
    time.sleep(STARVED_S)
    for pid, limit in limits.items():
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_AS, limit)


def clock_jumps(site: Site) -> None:
    """Move every wall clock but Redis' ahead, back, days ahead, and to the right time."""
    for jump_s in JUMPS_S:
        _set_clock(site.instance, jump_s)
        time.sleep(STARVED_S)


def half_open_connections(site: Site) -> None:
    """Kill all connections of workers and web server to Redis without a word to either end."""
    port = urlsplit(site.deployment.settings.redis_url or "").port
    for role in WORKERS:
        for pid in site.pids(role):
            _silence(pid, lambda end: end.getpeername()[1] == port)


def half_open_clients(site: Site) -> None:
    """Let the web server receive nothing more from its clients, without a word to either end."""
    port = site.port
    for pid in site.pids("web"):
        _silence(pid, lambda end: end.getsockname()[1] == port)


def _silence(pid: int, is_wanted: Callable[[socket.socket], bool]) -> None:
    """Let no packet reach these connections of the process any more, not even the one that closes them."""
    libc = ctypes.CDLL(None, use_errno=True)
    program = ctypes.create_string_buffer(DROP_ALL)
    packet_filter = struct.pack("HL", 1, ctypes.addressof(program))
    process = os.pidfd_open(pid)
    try:
        for number in [int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()]:
            copy = libc.syscall(PIDFD_GETFD, process, number, 0)
            if copy < 0:
                continue  # closed since then
            if not os.readlink(f"/proc/self/fd/{copy}").startswith("socket:"):
                os.close(copy)
                continue
            with socket.socket(fileno=copy) as end, suppress(OSError):  # a listening socket has no peer
                if end.family == socket.AF_INET and end.getpeername() and is_wanted(end):
                    end.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, packet_filter)
    finally:
        os.close(process)


def _end(pids: Listed[int]) -> None:
    """Kill the processes and wait until none of them writes any more."""
    send(pids, signal.SIGKILL)
    while any(runs(pid) for pid in pids):
        time.sleep(0.005)


def _append_only_file(site: Site) -> Path:
    return max((site.instance.redis / "appendonlydir").glob("*.incr.aof"), key=lambda path: path.stat().st_mtime)


def _clock(instance: Instance) -> dict[str, str]:
    """Return the environment that lets a process's wall clock be set from outside (`bench.chaos.clock`).

    The monotonic clock runs on, as it would.
    """
    _set_clock(instance, 0.0)
    path = os.pathsep.join(part for part in (str(CLOCK), os.environ.get("PYTHONPATH")) if part)
    return {"PYTHONPATH": path, "PACELINE_CHAOS_CLOCK": str(instance.folder / CLOCK_FILE)}


def _set_clock(instance: Instance, jump_s: float) -> None:
    instance.folder.mkdir(parents=True, exist_ok=True)
    fresh = instance.folder / f"{CLOCK_FILE}.new"
    fresh.write_text(f"{jump_s:+.0f}\n")
    fresh.replace(instance.folder / CLOCK_FILE)

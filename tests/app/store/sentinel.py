"""Run a real master, its replica and the Sentinel that watches them, each a process of its own."""

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import redis

from app.local.ports import any_free
from app.local.redis_server import find_server
from tests.workers.cluster import wait_for

NAME, PASSWORD = "pace", "s%3Acret"
PLAIN = "s:cret"
DOWN_MS = 400  # a master that is silent for so long is replaced
LONGEST_S = 20.0


@dataclass(frozen=True, slots=True)
class Watched:
    """The servers' processes and ports, and the Sentinel's address."""

    servers: Mapping[int, "subprocess.Popen[bytes]"]  # by port
    sentinel: int

    def url(self, *others: int) -> str:
        """Return Paceline's URL; `others`: ports of Sentinels that are named first."""
        places = ",".join(f"127.0.0.1:{port}" for port in (*others, self.sentinel))
        return f"redis+sentinel://:{PASSWORD}@{places}/{NAME}/0"

    def master(self) -> int:
        """Return the port of the master of this moment."""
        with redis.Redis(port=self.sentinel) as sentinel:
            return int(sentinel.sentinel_get_master_addr_by_name(NAME)[1])

    def replica(self) -> int:
        """Return the port of the other server."""
        return next(port for port in self.servers if port != self.master())

    def kill_master(self) -> None:
        """Kill the master with SIGKILL; its Sentinel has to notice."""
        self.servers[self.master()].kill()


@contextmanager
def watched(folder: Path) -> Iterator[Watched]:
    """Start the three; the replica is in step with its master then."""
    with ExitStack() as stack:
        first, second, sentinel = any_free(), any_free(), any_free()
        servers = {}
        for port, more in ((first, ()), (second, ("--replicaof", f"127.0.0.1 {first}"))):
            own = folder / str(port)
            own.mkdir()
            words = [
                "--port",
                str(port),
                "--dir",
                str(own),
                "--appendonly",
                "yes",
                "--save",
                "",
                "--requirepass",
                PLAIN,
            ]
            words += ["--masterauth", PLAIN, "--repl-diskless-sync-delay", "0", *more]
            servers[port] = stack.enter_context(_process(own, words))
        wait_for(lambda: _is_in_step(second), LONGEST_S, "a replica in step")
        config = folder / "sentinel.conf"
        config.write_text(
            f"port {sentinel}\nsentinel monitor {NAME} 127.0.0.1 {first} 1\nsentinel auth-pass {NAME} {PLAIN}\n"
            f"sentinel down-after-milliseconds {NAME} {DOWN_MS}\nsentinel failover-timeout {NAME} 3000\n"
        )
        stack.enter_context(_process(folder, [str(config), "--sentinel"]))
        wait_for(lambda: _knows_the_replica(sentinel), LONGEST_S, "a Sentinel that knows the replica")
        yield Watched(servers, sentinel)


@contextmanager
def _process(folder: Path, words: list[str]) -> "Iterator[subprocess.Popen[bytes]]":
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([str(find_server()), *words], stdout=log, stderr=log, cwd=folder)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def _is_in_step(port: int) -> bool:
    with suppress(redis.ConnectionError), redis.Redis(port=port, password=PLAIN, decode_responses=True) as server:
        return bool(server.info("replication").get("master_link_status") == "up")
    return False


def _knows_the_replica(port: int) -> bool:
    with suppress(redis.ConnectionError), redis.Redis(port=port) as sentinel:
        return bool(sentinel.sentinel_master(NAME)["num-slaves"])
    return False

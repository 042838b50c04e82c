"""Connect to Redis and run the Lua scripts in `scripts/`.

A client reconnects for about two seconds, then raises StoreUnavailable. A call may run twice (its reply was lost): a
script's second run has no further effect. Clients and scripts are thread-safe.
"""

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

import redis
from redis import Connection, ConnectionPool, SSLConnection, UnixDomainSocketConnection
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.client import Pipeline
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, OutOfMemoryError, ReadOnlyError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry
from redis.sentinel import (
    Sentinel,
    SentinelConnectionPool,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)

from app.errors import NotDurable, StoreUnavailable
from app.redis_url import RedisUrl

SOCKET_TIMEOUT_S = 5.0
BLOCK_S = 2.0  # longest single blocking command; must stay well below the socket timeout
# A peer that acknowledges nothing for so long counts as dead, also on idle connections: a cut cable, or a firewall that
# forgot the connection. Without this each call waits for a timeout.
GONE_S = 3
_ALIVE = {"TCP_KEEPIDLE": 1, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": GONE_S - 1, "TCP_USER_TIMEOUT": 1000 * GONE_S}
KEEPALIVE = {getattr(socket, name): value for name, value in _ALIVE.items() if hasattr(socket, name)}
RETRIES = 6
DISK_MS = 3000  # longest wait for Redis to write to its disk, which it does each second
MAX_CONNECTIONS = 8192  # every call that waits for a whole answer holds one; Redis has room for 10,000

Args = Sequence[Any]  # a script's arguments: str, int, float


def connect(url: str) -> redis.Redis:
    """The client connects at first use, with Sentinels to the present master. Raises ValueError for an invalid URL."""
    where = RedisUrl.parse(url)
    sockets: dict[str, Any] = {"socket_timeout": SOCKET_TIMEOUT_S, "protocol": 2}  # replies of one shape everywhere
    if not where.socket:
        sockets |= {"socket_connect_timeout": SOCKET_TIMEOUT_S, "socket_keepalive": True}
        sockets |= {"socket_keepalive_options": KEEPALIVE}
    options: dict[str, Any] = {
        **sockets,
        **where.login,
        **(where.tls or {}),
        "db": where.database,
        "decode_responses": True,
        "encoding_errors": "replace",  # an error in one item would lose the whole reply
        "health_check_interval": 30,
        "max_connections": MAX_CONNECTIONS,
        # A timeout is not retried: a server that hangs would hold a caller for half a minute.
        "retry": Retry(ExponentialWithJitterBackoff(cap=1.0, base=0.05), RETRIES, (RedisConnectionError,)),
    }
    if where.service:
        tls = {} if where.tls is None else {"ssl": True, **where.tls}
        asked = {**sockets, **tls, **where.sentinel_login, "retry": Retry(NoBackoff(), 0)}  # the next Sentinel is tried
        sentinel = Sentinel(where.servers, sentinel_kwargs=asked)
        managed = SentinelManagedConnection if where.tls is None else SentinelManagedSSLConnection
        return _Client.from_pool(SentinelConnectionPool(where.service, sentinel, connection_class=managed, **options))
    if where.socket:
        options |= {"connection_class": UnixDomainSocketConnection, "path": where.socket}
    else:
        host, port = where.servers[0]
        options |= {"connection_class": Connection if where.tls is None else SSLConnection, "host": host, "port": port}
    return _Client.from_pool(ConnectionPool(**options))


class Script:
    """A Lua script, run by its hash and reloaded after a restart of Redis."""

    def __init__(self, client: redis.Redis, *names: str) -> None:
        folder = files("app.store") / "scripts"
        # Several names are one script: what the earlier ones define, the last one uses.
        text = "\n".join((folder / f"{name}.lua").read_text() for name in names)
        self._client, self._text = client, text
        self._script = client.register_script(text)

    @property
    def sha(self) -> str:
        return str(self._script.sha)

    def __call__(self, keys: Sequence[str], args: Args) -> Any:
        return self._script(keys=keys, args=args)

    def durably(self, keys: Sequence[str], args: Args) -> Any:
        """Run once, and return when the writes are on the server's disk, and with Sentinels on a replica's.

        Raises StoreUnavailable, and NotDurable where only the disk, or a replica, is late by DISK_MS.
        """
        pipe = self._client.pipeline(transaction=False)
        pipe.script_load(self._text)
        self.stage(pipe, keys, args)
        replicas = int(isinstance(self._client.connection_pool, SentinelConnectionPool))  # one may be the next master
        pipe.execute_command("WAITAOF", 1, replicas, DISK_MS)  # for the writes of this very connection
        _, reply, written = pipe.execute(raise_on_error=False)
        reply = self.reply(reply, keys, args)
        if isinstance(written, Exception) or not written[0] or written[1] < replicas:
            raise NotDurable(f"Redis has not written the request to its disk: {written}")
        return reply

    def stage(self, pipe: Pipeline, keys: Sequence[str], args: Args) -> None:
        pipe.evalsha(self._script.sha, len(keys), *keys, *args)

    def each(self, calls: Sequence[tuple[Sequence[str], Args]]) -> list[Any]:
        """Run once for every (keys, args), in one round trip, without MULTI."""
        pipe = self._client.pipeline(transaction=False)
        for keys, args in calls:
            self.stage(pipe, keys, args)
        replies = pipe.execute(raise_on_error=False)
        return [self.reply(reply, *call) for reply, call in zip(replies, calls, strict=True)]

    def send(self, calls: Sequence[tuple[Sequence[str], Args]], after: Args = ()) -> "SentRuns":
        """Send the runs, behind a command whose reply is dropped if one is given."""
        connection = None
        try:
            connection = self._client.connection_pool.get_connection()
            commands = [packed(*after)] if after else []
            commands += [packed("EVALSHA", self._script.sha, len(keys), *keys, *args) for keys, args in calls]
            connection.send_packed_command([b"".join(commands)])
        except (RedisConnectionError, RedisTimeoutError):
            self.give_back(connection)
            connection = None
        return SentRuns(self, calls, connection, int(bool(after)))

    def release(self, connection: Any) -> None:
        self._client.connection_pool.release(connection)

    def give_back(self, connection: Any) -> None:
        if connection is not None:
            connection.disconnect()
            self._client.connection_pool.release(connection)

    def reply(self, reply: Any, keys: Sequence[str], args: Args) -> Any:
        """Return a staged run's reply; run it again if the server lacks the script. Raises StoreUnavailable."""
        if isinstance(reply, NoScriptError):
            return self(keys, args)
        if isinstance(reply, Exception):
            raise _translated(reply)
        return reply


class SentRuns:
    """Sent runs of a script, on a connection of their own until their replies are read."""

    def __init__(
        self, script: Script, calls: Sequence[tuple[Sequence[str], Args]], connection: Any, dropped: int
    ) -> None:
        self._script, self._calls, self._connection = script, calls, connection
        self._dropped = dropped  # replies before theirs

    def is_ready(self, wait_s: float = 0.0) -> bool:
        """Tell whether `replies` need not wait, after waiting so long for them."""
        try:
            return self._connection is None or bool(self._connection.can_read(timeout=wait_s))
        except (RedisConnectionError, RedisTimeoutError):
            return True

    def replies(self) -> list[Any]:
        """Wait for the replies; runs whose replies were lost are run again. Raises StoreUnavailable."""
        connection, self._connection = self._connection, None
        if connection is None:
            return self._script.each(self._calls)
        try:
            found = [_reply_of(connection) for _ in range(self._dropped + len(self._calls))][self._dropped :]
        except (RedisConnectionError, RedisTimeoutError):
            self._script.give_back(connection)
            return self._script.each(self._calls)
        self._script.release(connection)
        return [self._script.reply(reply, *call) for reply, call in zip(found, self._calls, strict=True)]


def packed(*command: object) -> bytes:
    """Pack a command as Redis reads it, in one piece: redis-py sends a commit's rows in a dozen."""
    texts = [str(arg).encode(errors="replace") for arg in command]
    return b"*%d\r\n%b" % (len(texts), b"".join([b"$%d\r\n%b\r\n" % (len(text), text) for text in texts]))


@contextmanager
def translating() -> Iterator[None]:
    try:
        yield
    except RedisError as error:
        if (translated := _translated(error)) is error:
            raise
        raise translated from error


def _translated(error: Exception) -> Exception:
    if isinstance(error, RedisConnectionError | RedisTimeoutError):
        return StoreUnavailable(f"Redis does not answer: {error}")
    if isinstance(error, OutOfMemoryError | ReadOnlyError) or "MISCONF" in str(error):
        return StoreUnavailable(f"Redis cannot write: {error}")
    return error


def _reply_of(connection: Any) -> Any:
    try:
        return connection.read_response()
    except ResponseError as error:  # the server's answer: NOSCRIPT, or a script's own error
        return error


@contextmanager
def _no_silence_twice(pool: Any) -> Iterator[None]:
    """Close the idle connections after a timeout: each may be dead and cost its own timeout."""
    try:
        yield
    except RedisTimeoutError:
        pool.disconnect(inuse_connections=False)
        raise


class _Client(redis.Redis):
    def execute_command(self, *args: Any, **options: Any) -> Any:
        with translating(), _no_silence_twice(self.connection_pool):
            return super().execute_command(*args, **options)

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Pipeline:
        return _Pipeline(self.connection_pool, self.response_callbacks, transaction, shard_hint)


class _Pipeline(Pipeline):
    def execute(self, raise_on_error: bool = True) -> list[Any]:
        with translating(), _no_silence_twice(self.connection_pool):
            return super().execute(raise_on_error)

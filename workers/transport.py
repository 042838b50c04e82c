"""Adapt kombu's Redis transport to malformed items, a full Redis, lost acks and long work.

kombu ends the worker on the first two, never recovers a message whose ack was lost, and delivers one again that takes
long. Here a malformed item is dropped, a full Redis is treated like a broken connection, and a message is delivered
again only when the process that holds it no longer renews it.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from queue import Empty
from typing import Any

from kombu.transport import redis as kombu_redis
from kombu.transport import virtual
from redis import Connection, SSLConnection
from redis.exceptions import ConnectionError, ResponseError, TimeoutError
from redis.sentinel import (
    Sentinel,
    SentinelConnectionPool,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)

log = logging.getLogger(__name__)
UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, RecursionError)  # no JSON, or of another shape


class _QoS(kombu_redis.QoS):
    def ack(self, delivery_tag: str) -> None:
        self._release(delivery_tag, super().ack)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        self._release(delivery_tag, lambda tag: super(_QoS, self).reject(tag, requeue))

    def restore_visible(self, *args: Any, **kwargs: Any) -> None:
        held = {tag: time.time() for tag in list(self._delivered) if tag not in self._dirty}
        if held:
            with self.channel.conn_or_acquire() as client:
                client.zadd(self.unacked_index_key, held, xx=True)
        super().restore_visible(*args, **kwargs)

    def _release(self, delivery_tag: str, acknowledge: Callable[[str], None]) -> None:
        """Acknowledge to Redis, again if the connection was dead; if both fail, Redis delivers the message again."""
        try:
            try:
                acknowledge(delivery_tag)
            except (ConnectionError, TimeoutError):
                acknowledge(delivery_tag)
        except (ConnectionError, TimeoutError, ResponseError):
            virtual.QoS.ack(self, delivery_tag)
            raise


class _Channel(kombu_redis.Channel):
    QoS = _QoS

    def _brpop_read(self, **options: Any) -> Any:
        before = set(self.qos._delivered)
        try:
            return super()._brpop_read(**options)
        except UNREADABLE as error:  # not its text, which may hold a prompt
            log.warning("dropped an item that is no task: %s", type(error).__name__)
            for tag in set(self.qos._delivered) - before:  # taken, then found wrong: it would hold a slot for ever
                self.qos.ack(tag)
            raise Empty from None


class Transport(kombu_redis.Transport):
    Channel = _Channel
    connection_errors = (*kombu_redis.Transport.connection_errors, ResponseError)


SENTINEL_OPTIONS = ("sentinels", "master_name", "sentinel_kwargs")


class _SentinelChannel(_Channel):
    """Connect to the master that Sentinels name.

    kombu's own channel takes several Sentinels only from a broker URL of several parts, and after the first error uses
    its own transport.
    """

    from_transport_options: tuple[str, ...] = (*_Channel.from_transport_options, *SENTINEL_OPTIONS)  # type: ignore[assignment]
    connection_class: type[Connection] = SentinelManagedConnection
    connection_class_ssl: type[SSLConnection] = SentinelManagedSSLConnection
    sentinels: Sequence[tuple[str, int]] = ()
    master_name = ""
    sentinel_kwargs: Mapping[str, Any] = {}

    def _get_pool(self, asynchronous: bool = False) -> SentinelConnectionPool:
        params = self._connparams(asynchronous=asynchronous)
        self.keyprefix_fanout = self.keyprefix_fanout.format(db=params["db"])
        options = {key: value for key, value in params.items() if key not in ("host", "port")}
        return SentinelConnectionPool(
            self.master_name, Sentinel(self.sentinels, sentinel_kwargs=self.sentinel_kwargs), **options
        )


class SentinelTransport(Transport):
    Channel = _SentinelChannel

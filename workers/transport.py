"""Adapt kombu's Redis transport to survive malformed items, a full Redis and lost acks.

kombu's own treats the first two as fatal errors. Here a malformed item is dropped, and a full Redis is treated like a
broken connection, by connecting again until it accepts writes. And with kombu's a message whose ack was lost with a
dead connection would count as unacknowledged for ever, as Celery only logs that.
"""

import logging
from collections.abc import Callable
from queue import Empty
from typing import Any

from kombu.transport import redis as kombu_redis
from kombu.transport import virtual
from redis.exceptions import ConnectionError, ResponseError, TimeoutError

log = logging.getLogger(__name__)
UNREADABLE = (ValueError, TypeError, KeyError, AttributeError)  # no JSON, or JSON of another shape


class _QoS(kombu_redis.QoS):
    """Keep the messages that are neither acked nor rejected, no more of them than the worker may take in advance."""

    def ack(self, delivery_tag: str) -> None:
        self._release(delivery_tag, super().ack)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        self._release(delivery_tag, lambda tag: super(_QoS, self).reject(tag, requeue))

    def _release(self, delivery_tag: str, acknowledge: Callable[[str], None]) -> None:
        """Acknowledge to Redis, once more where the connection was dead.

        A Redis that does not get it, or cannot write it, delivers the message once more; its work is done by then.
        """
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
        try:
            return super()._brpop_read(**options)
        except UNREADABLE as error:  # not its text, which may hold a prompt
            log.warning("dropped an item that is no task: %s", type(error).__name__)
            raise Empty from None


class Transport(kombu_redis.Transport):
    Channel = _Channel
    connection_errors = (*kombu_redis.Transport.connection_errors, ResponseError)

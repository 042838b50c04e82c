"""Celery's way to Redis, on which no item that is no task and no Redis that is full or silent ends the worker.

kombu's own takes the first two for errors that nobody can mend: the first is dropped here, and the second, which comes
of a full disk, is met like a connection that broke, by connecting again until all is well. And a message whose ack
was lost with a dead connection would fill its worker's hands for ever, as Celery only logs that.
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
    """A worker's messages in hand: those that are neither acked nor rejected, no more than it may take in advance."""

    def ack(self, delivery_tag: str) -> None:
        self._let_go(delivery_tag, super().ack)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        self._let_go(delivery_tag, lambda tag: super(_QoS, self).reject(tag, requeue))

    def _let_go(self, delivery_tag: str, tell: Callable[[str], None]) -> None:
        """Tell Redis, once more where the connection was dead. Where it does not hear it, or cannot write it, it will
        deliver the message once more: whoever takes an acked one then finds its work done."""
        try:
            try:
                tell(delivery_tag)
            except (ConnectionError, TimeoutError):
                tell(delivery_tag)
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

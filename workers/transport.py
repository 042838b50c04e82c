"""Celery's way to Redis, on which neither an item that is no task nor a Redis that cannot write ends the worker.

kombu's own takes both for errors that nobody can mend: the first is dropped here, and the second, which comes of a full
disk, is met like a connection that broke, by connecting again until all is well.
"""

import logging
from queue import Empty
from typing import Any

from kombu.transport import redis as kombu_redis
from redis.exceptions import ResponseError

log = logging.getLogger(__name__)
UNREADABLE = (ValueError, TypeError, KeyError, AttributeError)  # no JSON, or JSON of another shape


class _Channel(kombu_redis.Channel):
    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)
        except UNREADABLE as error:  # not its text, which may hold a prompt
            log.warning("dropped an item that is no task: %s", type(error).__name__)
            raise Empty from None


class Transport(kombu_redis.Transport):
    Channel = _Channel
    connection_errors = (*kombu_redis.Transport.connection_errors, ResponseError)

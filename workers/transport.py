"""Celery's way to Redis, on which an item that is no task is dropped; kombu's own lets it end the worker."""

import logging
from queue import Empty
from typing import Any

from kombu.transport import redis as kombu_redis

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

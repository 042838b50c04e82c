"""Store a task's result, and send its callbacks and its event, as Celery's tracer and worker would.

The task ended by `Ignore()`, for which Celery drops callbacks; they are kept with the request.
"""

import logging
from typing import Any

from celery import Celery, signals, signature
from celery.app.task import Context
from celery.worker.consumer import Consumer
from kombu.exceptions import OperationalError

from app.errors import GenerationFailed
from app.logs import of
from workers.celery_app import GENERATE

log = logging.getLogger(__name__)
EXPIRED, REVOKED = "expired", "revoked"


class TaskResults:
    """Thread-safe; events are sent once the worker is ready."""

    def __init__(self, celery: Celery) -> None:
        self._celery = celery
        self._consumer: Consumer | None = None
        signals.worker_ready.connect(self._ready)

    def succeeded(self, context: Context, value: dict[str, Any], summary: str, runtime_s: float) -> None:
        """`summary`: the result as a monitor shows it."""
        parent = {"parent_id": context.id, "root_id": context.root_id}
        for callback in context.callbacks or ():
            try:
                signature(callback, app=self._celery).apply_async((value,), **parent)
            except Exception as error:  # another service's signature: tried again, it would hold back all others
                # kombu takes each KeyError of Redis' transport for one of the connection
                if isinstance(error, OperationalError) and not isinstance(error.__cause__, KeyError):
                    raise
                log.exception("a link cannot be called", extra=of(context.id))
        if context.chain:
            rest = list(context.chain)
            following = signature(rest.pop(), app=self._celery)
            following.apply_async((value,), chain=rest, **parent)
        self._celery.backend.mark_as_done(context.id, value, request=context)
        self._send("task-succeeded", context, result=summary, runtime=runtime_s)

    def failed(self, context: Context, error: str) -> None:
        failure = GenerationFailed(error)
        self._celery.backend.mark_as_failure(context.id, failure, request=context)
        self._send("task-failed", context, exception=repr(failure), traceback="")

    def revoked(self, context: Context, reason: str) -> None:
        # As for any revoked task there are no error callbacks; the rest of a chain is never called.
        self._celery.backend.mark_as_revoked(context.id, reason, request=context)
        is_expired = reason == EXPIRED
        self._send("task-revoked", context, terminated=not is_expired, signum=None, expired=is_expired)

    def _ready(self, sender: Consumer, **_: Any) -> None:
        self._consumer = sender

    def _send(self, kind: str, context: Context, **fields: Any) -> None:
        # A new one after each reconnection; none before the first.
        dispatcher = getattr(self._consumer, "event_dispatcher", None)
        if dispatcher is None:
            return
        try:
            dispatcher.send(kind, uuid=context.id, name=GENERATE, **fields)
        except Exception as error:  # the result is stored; a lost event does not repeat it
            log.warning("no %s event: %s", kind, error, extra=of(context.id))

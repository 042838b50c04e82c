"""Give an ended request's result to the Celery task that submitted it, as if the task had returned it (design D12).

`Ignore()` ended the task without a result, and with that Celery forgot its callbacks. They were kept with the
request; here they are sent as Celery's own tracer would: links and the rest of a chain by hand, chords and error
callbacks through the backend's `mark_as_done` and `mark_as_failure`.
"""

import json
import logging
import time
from typing import Any

from celery import signature
from celery.app.task import Context

from app.errors import GenerationFailed, NotFound
from app.logs import of
from app.messages import Status
from app.stages.stream import result
from workers.celery_app import GENERATE
from workers.office import Office

log = logging.getLogger(__name__)
KEPT = (
    "id", "task", "root_id", "parent_id", "group", "group_index", "chord", "chain", "callbacks", "errbacks",
    "headers", "reply_to", "correlation_id", "delivery_info", "stamps", "stamped_headers", "replaced_task_nesting",
    "ignore_result",
)  # fmt: skip
CLAIM_TTL_S = 10.0
CATCH_UP_EVERY_S = 2.0


def saved_context(request: Context) -> dict[str, Any]:
    """What of a task's request must be kept for its callbacks; JSON only."""
    return {name: getattr(request, name, None) for name in KEPT}


class Settler:
    """Settles each request once; a crash in between means that it is done again, never that it is forgotten."""

    def __init__(self, office: Office) -> None:
        self._office = office
        self._caught_up_s = time.monotonic()

    def settle(self, request_id: str) -> None:
        """Store the result and send the callbacks, if the request has ended and waits for that.

        Whatever goes wrong with one request is logged and tried again: others wait behind it.
        """
        try:
            self._settle(request_id)
        except Exception:  # callbacks are strangers' signatures: they may raise anything
            log.exception("its result is not stored yet", extra=of(request_id))

    def catch_up(self) -> None:
        """From the pulse: settle what a lost message left behind."""
        now = time.monotonic()
        if now - self._caught_up_s >= CATCH_UP_EVERY_S:
            self._caught_up_s = now
            for request_id in self._office.requests.unsettled():
                self.settle(request_id)

    def _settle(self, request_id: str) -> None:
        store = self._office.requests
        try:
            kept = store.task(request_id) if store.ended(request_id) else None
            if kept is None or not store.claim_settle(request_id, CLAIM_TTL_S):
                return
            end = store.snapshot(request_id)
        except NotFound:
            return
        context = Context(json.loads(kept), task=GENERATE)
        if end.status is Status.FAILED:
            self._fail(context, end.error or "generation failed")
        else:
            answer = result(
                end.record, end.status, end.tokens, end.finish_reason, end.stats, end.error,
                self._office.tokenizer, end.ended_s or time.time(), end.logprobs,
            )  # fmt: skip
            self._succeed(context, answer.model_dump(mode="json"))
        store.settled(request_id)

    def _succeed(self, context: Context, value: dict[str, Any]) -> None:
        app = self._office.celery
        parent = {"parent_id": context.id, "root_id": context.root_id}
        for callback in context.callbacks or ():
            signature(callback, app=app).apply_async((value,), **parent)
        if context.chain:
            rest = list(context.chain)
            following = signature(rest.pop(), app=app)
            following.apply_async((value,), chain=rest, **parent)
        app.backend.mark_as_done(context.id, value, request=context)

    def _fail(self, context: Context, error: str) -> None:
        self._office.celery.backend.mark_as_failure(context.id, GenerationFailed(error), request=context)

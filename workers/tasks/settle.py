"""Settle ended requests' Celery tasks (design D12); end requests of revoked tasks."""

import json
import logging
import time
from contextlib import suppress
from datetime import datetime
from typing import Any

from celery.app.task import Context
from celery.worker import state as worker_state

from app.errors import NotFound
from app.logs import of
from app.messages import SETTLE, FinishReason, Settle, Status
from app.stages.result import result
from workers.celery_app import GENERATE
from workers.deployment import Deployment
from workers.heartbeat import HeartbeatTask
from workers.tasks.results import REVOKED, TaskResults

log = logging.getLogger(__name__)
KEPT = (
    "id", "task", "root_id", "parent_id", "group", "group_index", "chord", "chain", "callbacks", "errbacks",
    "headers", "reply_to", "correlation_id", "delivery_info", "stamps", "stamped_headers", "replaced_task_nesting",
    "ignore_result", "expires",
)  # fmt: skip
CLAIM_TTL_S = 10.0
CATCH_UP_EVERY_S = 2.0


def saved_context(request: Context) -> dict[str, Any]:
    """Keep the part of a task's request that its callbacks need; JSON only."""
    kept = {name: getattr(request, name, None) for name in KEPT}
    expires = kept["expires"]
    return {**kept, "expires": expires.isoformat() if isinstance(expires, datetime) else expires}


class ResultSettler(HeartbeatTask):
    def __init__(self, deployment: Deployment, results: TaskResults) -> None:
        self._deployment = deployment
        self._results = results
        self._caught_up_s = time.monotonic()

    def beat(self) -> None:
        self.end_revoked()
        self.catch_up()

    def settle(self, request_id: str) -> None:
        """Store the result and send the callbacks, if the request has ended and is not settled.

        An error is logged and the request tried again.
        """
        try:
            self._settle(request_id)
        except Exception:  # callbacks are other services' signatures: they may raise anything
            log.exception("the task's result is not stored yet", extra=of(request_id))

    def catch_up(self) -> None:
        now = time.monotonic()
        if now - self._caught_up_s >= CATCH_UP_EVERY_S:
            self._caught_up_s = now
            for request_id in self._deployment.requests.unsettled():
                self.settle(request_id)

    def end_revoked(self) -> None:
        if not len(worker_state.revoked):
            return
        for request_id in self._deployment.requests.unsettled():
            if request_id in worker_state.revoked:
                self._end_revoked(request_id)

    def _end_revoked(self, request_id: str) -> None:
        with suppress(NotFound):
            if self._deployment.requests.end(request_id, FinishReason.CANCELLED, REVOKED):
                log.info("its task was revoked", extra=of(request_id))
                self._deployment.post(SETTLE, [Settle(request_id=request_id)])

    def _settle(self, request_id: str) -> None:
        store = self._deployment.requests
        try:
            kept = store.task(request_id) if store.ended(request_id) else None
            if kept is None or not store.claim_settle(request_id, CLAIM_TTL_S):
                return
            end = store.snapshot(request_id)
        except NotFound:
            return
        context = Context(json.loads(kept), task=GENERATE)
        ended_s = end.ended_s or time.time()
        if end.status is Status.FAILED:
            self._results.failed(context, end.error or "generation failed")
        elif end.error == REVOKED:
            self._results.revoked(context, REVOKED)
        else:
            answer = result(end, self._deployment.tokenizer, ended_s)
            summary = f"{answer.status}, {len(end.tokens)} tokens"  # not the text: a monitor must not show answers
            runtime_s = max(0.0, ended_s - end.record.created_s)
            self._results.succeeded(context, answer.model_dump(mode="json"), summary, runtime_s)
        store.settled(request_id)

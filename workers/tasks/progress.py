"""Publish the state PROGRESS of a generating task, with the number of its tokens."""

import json
from collections import OrderedDict
from typing import Any

from app.errors import NotFound
from workers.deployment import Deployment
from workers.heartbeat import HeartbeatTask

PROGRESS = "PROGRESS"  # as Celery's documentation names it
EVERY_S = 1.0
MOST_KNOWN = 4096


class TaskProgress(HeartbeatTask):
    """Several processes may run it, one at a time."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        # by request: tokens; max_tokens, None if its result is not wanted
        self._known_progress: OrderedDict[str, tuple[int, int | None]] = OrderedDict()

    def begin(self, request_id: str) -> None:
        """Publish that it is admitted: from now on a `revoke` leaves its state to Paceline."""
        if request_id not in self._known_progress:  # it may have been sent twice
            self._publish(request_id, 0)

    def beat(self) -> None:
        store = self._deployment.progress
        waiting = self._deployment.requests.unsettled()
        if waiting and self._deployment.nodes.try_lock("progress", EVERY_S):
            for request_id, tokens in store.tokens(waiting).items():
                if self._known_progress.get(request_id, (-1,))[0] != tokens:
                    self._publish(request_id, tokens)

    def _publish(self, request_id: str, tokens: int) -> None:
        known = self._known_progress.get(request_id)
        most = self._max_tokens(request_id) if known is None else known[1]
        self._known_progress[request_id] = tokens, most
        self._known_progress.move_to_end(request_id)
        while len(self._known_progress) > MOST_KNOWN:
            self._known_progress.popitem(last=False)
        if most is not None:
            self._write(request_id, {"tokens": tokens, "max_tokens": most})

    def _max_tokens(self, request_id: str) -> int | None:
        """None if its result is not wanted."""
        try:
            record = self._deployment.requests.snapshot(request_id).record
        except NotFound:
            return None
        context = json.loads(self._deployment.requests.task(request_id) or "{}")
        return None if context.get("ignore_result") else record.max_tokens

    def _write(self, request_id: str, facts: dict[str, int]) -> None:
        backend = self._deployment.celery.backend
        meta: dict[str, Any] = {
            "status": PROGRESS,
            "result": facts,
            "traceback": None,
            "children": [],
            "date_done": None,
        }
        key = backend.get_key_for_task(request_id).decode()
        text = backend.encode({**meta, "task_id": request_id})
        self._deployment.progress.tell(request_id, key, text, int(backend.expires))

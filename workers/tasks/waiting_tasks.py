"""Admit waiting requests of Celery tasks when there is room: by priority, then first in, first out.

They wait in Redis, not in Celery: its Redis transport takes a task off the queue and stores it as unacknowledged in two
steps, and a worker killed between them loses the task.
"""

import json
import time
from typing import Any

from celery.app.task import Context
from celery.utils.time import maybe_iso8601
from celery.worker import state as worker_state

from app.errors import InvalidRequest, QueueFull
from app.request import GenerateRequest
from app.store.nodes import Nodes
from app.store.tasks import NORMAL, PRIORITIES, WaitingRoom
from workers.celery_app import GENERATE
from workers.deployment import Deployment
from workers.heartbeat import HeartbeatTask
from workers.tasks.results import EXPIRED, REVOKED, TaskResults

PATIENCE_S = 120.0  # a task that is not admitted by then fails
LOOK_EVERY_S = 0.5


class WaitingTasks(HeartbeatTask):
    """Several processes may run it, one at a time."""

    def __init__(self, deployment: Deployment, results: TaskResults, patience_s: float = PATIENCE_S) -> None:
        self._deployment = deployment
        self._results = results
        self._room: WaitingRoom = deployment.waiting
        self._nodes: Nodes = deployment.nodes
        self._patience_s = patience_s
        self._revoked: set[str] = set()  # revoked tasks that were looked for in the whole room

    def admit(self, request: GenerateRequest, request_id: str, context: dict[str, Any], priority: str = NORMAL) -> bool:
        """Admit a task's request if there is room and no other precedes it. Raises InvalidRequest, StoreUnavailable."""
        if self._deployment.requests.task(request_id) is not None:
            return True  # sent twice
        if self._room.before(priority):
            return False
        try:
            self._deployment.submit(request, request_id=request_id, task=json.dumps(context))
        except QueueFull:
            return False
        return True

    def wait(self, request: GenerateRequest, request_id: str, context: dict[str, Any], priority: str = NORMAL) -> None:
        """Raises QueueFull if too many wait already, StoreUnavailable."""
        until_s = time.time() + self._patience_s
        item = {"id": request_id, "request": request.model_dump(mode="json"), "task": json.dumps(context)}
        self._room.put(json.dumps({**item, "until_s": until_s}), priority)

    def beat(self) -> None:
        if not len(self._room) or not self._nodes.try_lock("usher", LOOK_EVERY_S):
            return
        self._end_revoked()
        has_room = True
        for priority in PRIORITIES:
            while (item := self._room.first(priority)) is not None:
                if not self._is_dealt_with(item, has_room):
                    has_room = False
                    break
                self._room.remove(item, priority)

    def _end_revoked(self) -> None:
        revoked = set(worker_state.revoked)
        new, self._revoked = revoked - self._revoked, revoked
        if not new:
            return
        for priority, item in self._room.items():
            waiting = json.loads(item)
            if waiting["id"] in new:
                self._results.revoked(_context(waiting), REVOKED)
                self._room.remove(item, priority)

    def _is_dealt_with(self, item: str, has_room: bool) -> bool:
        waiting = json.loads(item)
        if waiting["id"] in worker_state.revoked:
            self._results.revoked(_context(waiting), REVOKED)
        elif _is_expired(waiting):
            self._results.revoked(_context(waiting), EXPIRED)
        else:
            return self._is_admitted(waiting, has_room)
        return True

    def _is_admitted(self, waiting: dict[str, Any], has_room: bool) -> bool:
        full = "requests of higher priority are waiting"
        try:
            request = GenerateRequest.model_validate(waiting["request"])
            try:
                if has_room:
                    self._deployment.submit(request, request_id=waiting["id"], task=waiting["task"])
                    return True
            except QueueFull as error:
                full = str(error)
            if time.time() < waiting["until_s"]:
                return False
            # Settled like any other end: else its failure might be published, and another process admit it.
            self._deployment.reject(request, waiting["id"], waiting["task"], f"there was no room in time: {full}")
        except (
            InvalidRequest,
            ValueError,
        ) as error:  # put there by another version or with other settings
            self._results.failed(_context(waiting), str(error))
        return True


def _is_expired(waiting: dict[str, Any]) -> bool:
    try:
        expires = maybe_iso8601(json.loads(waiting["task"]).get("expires"))  # as Celery reads it
        return expires is not None and expires.timestamp() <= time.time()
    except (ValueError, OverflowError):  # one that Celery refuses: as if there were none
        return False


def _context(waiting: dict[str, Any]) -> Context:
    return Context(json.loads(waiting["task"]), task=GENERATE)

"""Let requests of Celery tasks in that found the deployment full: in the order they came, from the pulse.

They wait in Redis, not in Celery: its Redis transport takes a task off the queue and writes down that it has it in
two steps, so a worker killed between them loses the task. A task put off by `retry` meets that danger each second;
here it is met once, and not at all while it waits.
"""

import json
import time
from typing import Any

from celery.app.task import Context

from app.errors import GenerationFailed, InvalidRequest, QueueFull
from app.messages import GenerateRequest
from app.store.nodes import Nodes
from app.store.waiting import WaitingRoom
from workers.celery_app import GENERATE
from workers.office import Office

PATIENCE_S = 120.0  # a task that nobody has let in by then fails
LOOK_EVERY_S = 0.5


class Usher:
    """Keeps the waiting room of one deployment; several may, one at a time."""

    def __init__(self, office: Office, patience_s: float = PATIENCE_S) -> None:
        self._office = office
        self._room: WaitingRoom = office.waiting
        self._nodes: Nodes = office.nodes
        self._patience_s = patience_s

    def admit(self, request: GenerateRequest, request_id: str, context: dict[str, Any]) -> bool:
        """Let a task's request in if there is room and nobody waits. Raises InvalidRequest, StoreUnavailable."""
        if len(self._room):
            return False
        try:
            self._office.submit(request, request_id=request_id, task=json.dumps(context))
        except QueueFull:
            return False
        return True

    def wait(self, request: GenerateRequest, request_id: str, context: dict[str, Any]) -> None:
        """Queue a task's request up. Raises QueueFull if too many wait already, StoreUnavailable."""
        until_s = time.time() + self._patience_s
        item = {"id": request_id, "request": request.model_dump(mode="json"), "task": json.dumps(context)}
        self._room.put(json.dumps({**item, "until_s": until_s}))

    def look(self) -> None:
        """From the pulse: let in whoever there is room for, and send those away who have waited too long."""
        if not len(self._room) or not self._nodes.try_lock("usher", LOOK_EVERY_S):
            return
        while (item := self._room.first()) is not None:
            if self._is_dealt_with(item):
                self._room.remove(item)
            else:
                return

    def _is_dealt_with(self, item: str) -> bool:
        """Admitted, or sent away; else there is no room yet for this one and those behind it."""
        waiting = json.loads(item)
        try:
            request = GenerateRequest.model_validate(waiting["request"])
            self._office.submit(request, request_id=waiting["id"], task=waiting["task"])
        except QueueFull as error:
            if time.time() < waiting["until_s"]:
                return False
            self._fail(waiting, f"there was no room in time: {error}")
        except (InvalidRequest, ValueError) as error:  # another version, or one with other settings, put it there
            self._fail(waiting, str(error))
        return True

    def _fail(self, waiting: dict[str, Any], error: str) -> None:
        context = Context(json.loads(waiting["task"]), task=GENERATE)
        self._office.celery.backend.mark_as_failure(context.id, GenerationFailed(error), request=context)

"""The state of a task whose request generates: PROGRESS, with how many tokens there are. Told by the heartbeat."""

import json
from collections import OrderedDict
from typing import Any

from app.errors import NotFound
from workers.deployment import Deployment

PROGRESS = "PROGRESS"  # as Celery's documentation names it
EVERY_S = 1.0
MOST_KNOWN = 4096


class TaskProgress:
    """Of one deployment; several may tell it, one at a time."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._known_progress: OrderedDict[str, tuple[int, int | None]] = (
            OrderedDict()
        )  # tokens; max_tokens, None: nobody reads it

    def begin(self, request_id: str) -> None:
        """It is admitted. From now on a `revoke` leaves the task's state to us, as that of any that was started."""
        if request_id not in self._known_progress:  # it may have been sent twice
            self._tell(request_id, 0)

    def refresh(self) -> None:
        """From the heartbeat: tell of those that went on."""
        store = self._deployment.progress
        waiting = self._deployment.requests.unsettled()
        if waiting and self._deployment.nodes.try_lock("progress", EVERY_S):
            for request_id, tokens in store.tokens(waiting).items():
                if self._known_progress.get(request_id, (-1,))[0] != tokens:
                    self._tell(request_id, tokens)

    def _tell(self, request_id: str, tokens: int) -> None:
        most = self._known_progress[request_id][1] if request_id in self._known_progress else self._most(request_id)
        self._known_progress[request_id] = tokens, most
        self._known_progress.move_to_end(request_id)
        while len(self._known_progress) > MOST_KNOWN:
            self._known_progress.popitem(last=False)
        if most is not None:
            self._write(request_id, {"tokens": tokens, "max_tokens": most})

    def _most(self, request_id: str) -> int | None:
        """Its max_tokens; None if its result is not wanted."""
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

"""Refuse a task whose envelope Celery would choke on in a thread: it would hold the message and a slot for ever."""

from typing import Any

from celery.exceptions import InvalidTaskError
from celery.worker.request import Request

NUMBERS = ("retries",)
TEXTS = ("id", "task", "root_id", "parent_id", "group", "shadow", "argsrepr", "kwargsrepr", "eta", "expires")


class SoundRequest(Request):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        headers = self.request_dict
        is_sound = (
            isinstance(self.args, list | tuple)
            and isinstance(self.kwargs, dict)
            and all(isinstance(headers.get(name) or 0, int) for name in NUMBERS)
            and all(isinstance(headers.get(name) or "", str) for name in TEXTS)
            and isinstance(headers.get("timelimit") or [], list | tuple)
        )
        if not is_sound:
            raise InvalidTaskError("a part of the envelope is of another kind")

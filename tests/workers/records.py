"""Make the stored record of a task's request."""

from app.messages import Record
from tests.records import record


def task_record(request_id: str, created_s: float = 0.0) -> Record:
    return record((5,), 50, request_id=request_id, created_s=created_s, is_task=True)

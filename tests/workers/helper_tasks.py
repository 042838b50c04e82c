"""Define another service's tasks, with Celery's defaults: `celery -A tests.workers.helper_tasks worker`."""

import os
from typing import Any

from celery import Celery

app = Celery("helpers", broker=os.environ["HELPERS_REDIS_URL"], backend=os.environ["HELPERS_REDIS_URL"])


@app.task(name="helpers.double")
def double(text: str) -> str:
    return text + text


@app.task(name="helpers.text_of")
def text_of(result: dict[str, Any]) -> str:
    return str(result["text"])


@app.task(name="helpers.texts_of")
def texts_of(results: list[dict[str, Any]]) -> list[str]:
    return [str(result["text"]) for result in results]


@app.task(name="helpers.mourn")
def mourn(task_id: str) -> str:
    return f"mourned {task_id}"


@app.task(name="helpers.count")
def count(_: Any, key: str) -> int:
    return int(app.backend.client.incr(key))

"""Register the Celery task `paceline.generate`: admit another service's request, or queue it.

Its result is stored under the task's id when the request ends, so it holds no worker slot (design D12,
`workers/tasks/settle.py`).
"""

from typing import Any

from celery import Celery, Task
from celery.exceptions import Ignore, Reject
from pydantic import ValidationError

from app.config import Settings
from app.errors import GenerationFailed, InvalidRequest, QueueFull, StoreUnavailable, validation_message
from app.request import GenerateRequest
from app.store.tasks import NORMAL, Deliveries
from workers.celery_app import GENERATE, public_queues
from workers.tasks.progress import TaskProgress
from workers.tasks.settle import saved_context
from workers.tasks.waiting_tasks import WaitingTasks

RESULT = {"text", "token_ids"}  # fields of a result that no request has
MAX_DEATHS = 3  # processes that may die while they read one task
WAITING = "WAITING"  # a task's state while there is no room for its request


def register(
    celery: Celery,
    settings: Settings,
    waiting_tasks: WaitingTasks,
    progress: TaskProgress,
    deliveries: Deliveries,
    owner: str,
) -> None:
    priorities = {queue: name for name, queue in public_queues(settings).items()}

    @celery.task(name=GENERATE, bind=True, acks_late=True, throws=(ValueError,), shared=False)
    def generate(self: Task, /, *args: Any, **kwargs: Any) -> None:
        priority = priorities.get(str((self.request.delivery_info or {}).get("routing_key")), NORMAL)
        try:
            with deliveries.held(self.request.id, owner) as deaths:
                if deaths >= MAX_DEATHS:
                    raise GenerationFailed(f"{deaths} processes died while they read this task")
                _admit(self, request_of(args, kwargs), priority, waiting_tasks, progress)
        except QueueFull as error:
            raise GenerationFailed(str(error)) from None
        except InvalidRequest as error:
            raise ValueError(str(error)) from None
        except StoreUnavailable as error:
            raise Reject(error, requeue=True) from error  # delivered again, without Redis when it is back
        raise Ignore()


def request_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> GenerateRequest:
    """Read the request from a task's arguments; the first may be another task's result.

    Raises ValueError: a plain exception travels through every result backend.
    """
    if len(args) > 1:
        raise ValueError("paceline.generate takes keyword arguments; only the prompt may be positional")
    if args:
        kwargs = {**_fields(args[0]), **kwargs}
    try:
        return GenerateRequest.model_validate(kwargs)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{where + ': ' if where else ''}{validation_message(first)}") from None


def _fields(given: Any) -> dict[str, Any]:
    """Accept a prompt, a request's fields, a result's text, or in a chord several of these, joined by blank lines."""
    if isinstance(given, list):
        prompts = [_fields(one).get("prompt") for one in given]
        if not all(isinstance(prompt, str) for prompt in prompts):
            raise ValueError("each part of a chord must return a prompt or a result")
        return {"prompt": "\n\n".join(map(str, prompts))}
    if isinstance(given, dict):
        return {"prompt": given["text"]} if given.keys() >= RESULT else given
    return {"prompt": given}


def _admit(
    task: Task, request: GenerateRequest, priority: str, waiting_tasks: WaitingTasks, progress: TaskProgress
) -> None:
    request_id, context = task.request.id, saved_context(task.request)
    if waiting_tasks.admit(request, request_id, context, priority):
        progress.begin(request_id)
        return
    if not task.request.ignore_result:
        task.update_state(state=WAITING)  # before it waits: afterwards there may be a result already
    waiting_tasks.wait(request, request_id, context, priority)

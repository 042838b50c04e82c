"""Control: takes requests in from Celery, gives results back to it, and ticks the scheduler. Always answers."""

import logging
from typing import Any

from celery import Task
from celery.exceptions import Ignore, Reject
from pydantic import ValidationError

from app.errors import GenerationFailed, InvalidRequest, QueueFull, StoreUnavailable, validation_message
from app.messages import SETTLE, Settle
from app.request import GenerateRequest
from app.store.tasks import NORMAL
from workers.celery_app import GENERATE, STEER, public_queues
from workers.deployment import Deployment
from workers.heartbeat import Heartbeat
from workers.mailbox_consumer import consume_mailbox
from workers.service import RoleService
from workers.tasks.progress import TaskProgress
from workers.tasks.results import TaskResults
from workers.tasks.settle import ResultSettler, saved_context
from workers.tasks.steer import tick
from workers.tasks.waiting_tasks import WaitingTasks

log = logging.getLogger(__name__)
RESULT = {"text", "token_ids"}  # no request has these
WAITING = "WAITING"  # a task's state while there is no room for its request


def serve(deployment: Deployment, node: str) -> RoleService:
    """Register the public task, the tick and the settling of results."""
    heartbeat = Heartbeat(deployment, "control", node)
    outcomes = TaskResults(deployment.celery)
    settler, waiting_tasks, progress = (
        ResultSettler(deployment, outcomes),
        WaitingTasks(deployment, outcomes),
        TaskProgress(deployment),
    )
    heartbeat.on_beat += [settler.end_revoked, settler.catch_up, waiting_tasks.admit_waiting, progress.refresh]
    priorities = {queue: name for name, queue in public_queues(deployment.settings).items()}

    @deployment.celery.task(name=GENERATE, bind=True, acks_late=True, throws=(ValueError,))
    def generate(self: Task, *args: Any, **kwargs: Any) -> None:
        """Admit; the result is stored under this task's id when the request ends, so no slot waits (design D12)."""
        request = _request(args, kwargs)
        context = saved_context(self.request)
        priority = priorities.get(str((self.request.delivery_info or {}).get("routing_key")), NORMAL)
        try:
            if waiting_tasks.admit(request, self.request.id, context, priority):
                progress.begin(self.request.id)
            else:
                if not self.request.ignore_result:
                    self.update_state(state=WAITING)  # before it waits: afterwards there may be a result already
                waiting_tasks.wait(request, self.request.id, context, priority)
        except QueueFull as error:
            raise GenerationFailed(str(error)) from None
        except InvalidRequest as error:
            raise ValueError(str(error)) from None
        except StoreUnavailable as error:
            raise Reject(error, requeue=True) from error  # or, without Redis, again when it is back
        raise Ignore()

    @deployment.celery.task(name=STEER, ignore_result=True, send_events=False)  # one a second would hide all others
    def steer_tick() -> None:
        tick(deployment)

    def handle(messages: list[Settle]) -> None:
        for message in messages:
            settler.settle(message.request_id)

    return RoleService(heartbeat, {SETTLE: lambda: consume_mailbox(deployment, heartbeat, SETTLE, Settle, handle)})


def _request(args: tuple[Any, ...], kwargs: dict[str, Any]) -> GenerateRequest:
    """The request in a task's arguments; the first may be what a task before it gave.

    Raises ValueError with pydantic's explanation: a plain exception travels through every result backend.
    """
    if len(args) > 1:
        raise ValueError("give keyword arguments; at most the prompt may come by position")
    if args:
        kwargs = {**_fields(args[0]), **kwargs}
    try:
        return GenerateRequest.model_validate(kwargs)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{where + ': ' if where else ''}{validation_message(first)}") from None


def _fields(given: Any) -> dict[str, Any]:
    """A prompt, fields of a request, the text of a result, or in a chord several of these, with blank lines between."""
    if isinstance(given, list):
        prompts = [_fields(one).get("prompt") for one in given]
        if not all(isinstance(prompt, str) for prompt in prompts):
            raise ValueError("a chord's parts must give prompts, or results")
        return {"prompt": "\n\n".join(map(str, prompts))}
    if isinstance(given, dict):
        return {"prompt": given["text"]} if given.keys() >= RESULT else given
    return {"prompt": given}

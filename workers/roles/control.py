"""Control: takes requests in from Celery, gives results back to it, and ticks the scheduler. Always answers."""

import logging
from typing import Any

from celery import Task
from celery.exceptions import Ignore, Reject
from pydantic import ValidationError

from app.errors import GenerationFailed, InvalidRequest, QueueFull, StoreUnavailable, said
from app.messages import SETTLE, Settle
from app.request import GenerateRequest
from app.store.tasks import NORMAL
from workers.celery_app import GENERATE, STEER, public_queues
from workers.deployment import Office
from workers.heartbeat import Pulse
from workers.mailbox_consumer import attend
from workers.service import Duty
from workers.tasks.progress import Progress
from workers.tasks.results import Outcomes
from workers.tasks.settle import Settler, saved_context
from workers.tasks.steer import tick
from workers.tasks.waiting_tasks import Usher

log = logging.getLogger(__name__)
RESULT = {"text", "token_ids"}  # no request has these
WAITING = "WAITING"  # a task's state while there is no room for its request


def serve(office: Office, node: str) -> Duty:
    """Register the public task, the tick and the settling of results."""
    pulse = Pulse(office, "control", node)
    outcomes = Outcomes(office.celery)
    settler, usher, progress = Settler(office, outcomes), Usher(office, outcomes), Progress(office)
    pulse.on_beat += [settler.end_revoked, settler.catch_up, usher.look, progress.look]
    priorities = {queue: name for name, queue in public_queues(office.settings).items()}

    @office.celery.task(name=GENERATE, bind=True, acks_late=True, throws=(ValueError,))
    def generate(self: Task, *args: Any, **kwargs: Any) -> None:
        """Admit; the result is stored under this task's id when the request ends, so no slot waits (design D12)."""
        request = _request(args, kwargs)
        context = saved_context(self.request)
        priority = priorities.get(str((self.request.delivery_info or {}).get("routing_key")), NORMAL)
        try:
            if usher.admit(request, self.request.id, context, priority):
                progress.begin(self.request.id)
            else:
                if not self.request.ignore_result:
                    self.update_state(state=WAITING)  # before it waits: afterwards there may be a result already
                usher.wait(request, self.request.id, context, priority)
        except QueueFull as error:
            raise GenerationFailed(str(error)) from None
        except InvalidRequest as error:
            raise ValueError(str(error)) from None
        except StoreUnavailable as error:
            raise Reject(error, requeue=True) from error  # or, without Redis, again when it is back
        raise Ignore()

    @office.celery.task(name=STEER, ignore_result=True, send_events=False)  # one a second would hide all others
    def steer_tick() -> None:
        tick(office)

    def handle(messages: list[Settle]) -> None:
        for message in messages:
            settler.settle(message.request_id)

    return Duty(pulse, {SETTLE: lambda: attend(office, pulse, SETTLE, Settle, handle)})


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
        raise ValueError(f"{where + ': ' if where else ''}{said(first)}") from None


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

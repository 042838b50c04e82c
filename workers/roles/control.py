"""Control: takes requests in from Celery, gives results back to it, and ticks the scheduler. Always answers."""

import logging
from typing import Any

from celery import Task
from celery.exceptions import Ignore, Reject
from pydantic import ValidationError

from app.errors import GenerationFailed, InvalidRequest, QueueFull, StoreUnavailable
from app.messages import GenerateRequest, Settle
from workers.attend import attend
from workers.celery_app import GENERATE, STEER
from workers.duty import Duty
from workers.office import SETTLE, Office
from workers.pulse import Pulse
from workers.settle import Settler, saved_context
from workers.steering import tick
from workers.usher import Usher

log = logging.getLogger(__name__)
WAITING = "WAITING"  # a task's state while there is no room for its request


def serve(office: Office, node: str) -> Duty:
    """Register the public task, the tick and the settling of results."""
    pulse = Pulse(office, "control", node)
    settler = Settler(office)
    usher = Usher(office)
    pulse.on_beat += [settler.catch_up, usher.look]

    @office.celery.task(name=GENERATE, bind=True, acks_late=True, throws=(ValueError,))
    def generate(self: Task, *args: Any, **kwargs: Any) -> None:
        """Admit; the result is stored under this task's id when the request ends, so no slot waits (design D12)."""
        request = _request(args, kwargs)
        context = saved_context(self.request)
        try:
            if not usher.admit(request, self.request.id, context):
                if not self.request.ignore_result:
                    self.update_state(state=WAITING)  # before it waits: afterwards there may be a result already
                usher.wait(request, self.request.id, context)
        except QueueFull as error:
            raise GenerationFailed(str(error)) from None
        except InvalidRequest as error:
            raise ValueError(str(error)) from None
        except StoreUnavailable as error:
            raise Reject(error, requeue=True) from error  # or, without Redis, again when it is back
        raise Ignore()

    @office.celery.task(name=STEER, ignore_result=True)
    def steer_tick() -> None:
        tick(office)

    def handle(messages: list[Settle]) -> None:
        for message in messages:
            settler.settle(message.request_id)

    return Duty(pulse, {SETTLE: lambda: attend(office, pulse, SETTLE, Settle, handle)})


def _request(args: tuple[Any, ...], kwargs: dict[str, Any]) -> GenerateRequest:
    """The request in a task's arguments. In a chain the task before gives the prompt, or a dict of fields.

    Raises ValueError with pydantic's explanation: a plain exception travels through every result backend.
    """
    if len(args) > 1:
        raise ValueError("give keyword arguments; at most the prompt may come by position")
    if args:
        kwargs = {**(args[0] if isinstance(args[0], dict) else {"prompt": args[0]}), **kwargs}
    try:
        return GenerateRequest.model_validate(kwargs)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{where + ': ' if where else ''}{first['msg']}") from None

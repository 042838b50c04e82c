"""What the APIs have in common: bodies in, answers and streams out, and whether the client is still there."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from flask import Response, request
from pydantic import BaseModel, ValidationError
from werkzeug.exceptions import UnsupportedMediaType

from web.errors import InvalidBody

Body = TypeVar("Body", bound=BaseModel)


def body_of(model: type[Body]) -> Body:
    """The request's JSON body. Raises InvalidBody, UnsupportedMediaType."""
    # a content type of its own also keeps other sites' forms out: they cannot send it without our leave
    if request.mimetype != "application/json":
        raise UnsupportedMediaType("send the body as Content-Type: application/json")
    try:
        return model.model_validate_json(request.get_data(cache=False))
    except ValidationError as error:
        raise InvalidBody(error) from error


def json_answer(message: BaseModel, status: int = 200) -> Response:
    """A message as an answer."""
    response = Response(message.model_dump_json(), status=status, mimetype="application/json")
    response.headers["Cache-Control"] = "no-store"
    return response


def event_stream(frames: Iterator[str]) -> Response:
    """Server-sent events as an answer."""
    response = Response(frames, mimetype="text/event-stream")
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Accel-Buffering"] = "no"  # a reverse proxy must not collect the stream
    return response


def client_left() -> Callable[[], bool]:
    """Asks whether this call's client has gone; also after the call's context has."""
    is_gone: Callable[[], bool] = request.environ.get("waitress.client_disconnected", lambda: False)
    return is_gone

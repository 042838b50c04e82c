"""Read bodies and make responses for both APIs."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from flask import Response, request
from pydantic import BaseModel, ValidationError
from werkzeug.exceptions import UnsupportedMediaType

from web.errors import InvalidBody

Body = TypeVar("Body", bound=BaseModel)
View = TypeVar("View", bound=Callable[..., Response])
WRITER = "paceline.writer"  # in a call's environment (web/server.py)
OPERATION = "operation"  # the attribute of a view function
HELLO = [{"role": "user", "content": "Hello"}]  # messages of an example


@dataclass(frozen=True)
class Operation:
    """Describe a route for the OpenAPI document, as a decorator of its view."""

    summary: str
    answers: Mapping[int, type[BaseModel] | None]  # by status; None: a stream alone
    body: type[BaseModel] | None = None
    streams: bool = False  # the answer of status 200 may be a stream
    query: tuple[dict[str, Any], ...] = ()
    example: Mapping[str, Any] | None = None  # a body without the name of the model

    def __call__(self, view: View) -> View:
        setattr(view, OPERATION, self)
        return view


def body_of(model: type[Body]) -> Body:
    """Raises InvalidBody, UnsupportedMediaType."""
    # other sites' forms cannot send this type without a preflight
    if request.mimetype != "application/json":
        raise UnsupportedMediaType("send the body as Content-Type: application/json")
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise UnsupportedMediaType("send the body as it is, without Content-Encoding")
    try:
        return model.model_validate_json(request.get_data(cache=False))
    except ValidationError as error:
        raise InvalidBody(error) from error


def json_answer(message: BaseModel, status: int = 200) -> Response:
    response = Response(message.model_dump_json(), status=status, mimetype="application/json")
    response.headers["Cache-Control"] = "no-store"
    return response


def event_stream(frames: Iterator[str]) -> Response:
    response = Response(frames, mimetype="text/event-stream")
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Accel-Buffering"] = "no"  # a reverse proxy must not collect the stream
    return response


@dataclass(frozen=True, slots=True)
class Writer:
    """Write to a response from any thread, beside the parts that its iterator yields."""

    write: Callable[[bytes], object]  # raises when the client has disconnected
    is_free: Callable[[], bool]  # a write would not wait


@dataclass(frozen=True, slots=True)
class Client:
    """Usable outside the call's context."""

    is_gone: Callable[[], bool]  # it has disconnected
    environ: Mapping[str, Any]

    def writer(self) -> Writer | None:
        """None if the server has none, or a write might wait for a slow client."""
        found: Writer | None = self.environ.get(WRITER)
        return found if found is not None and found.is_free() else None


def client() -> Client:
    is_gone: Callable[[], bool] = request.environ.get("waitress.client_disconnected", lambda: False)
    return Client(is_gone, request.environ)

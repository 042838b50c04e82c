"""Turn exceptions into HTTP responses: each kind has one status, here and nowhere else.

The body is JSON: an ErrorAnswer, below /v1 OpenAI's V1ErrorAnswer, and below /v1/messages Anthropic's.

400 wrong input     401 no API key, or a wrong one     404 no such request, model, page     413 body too large
415 body is not JSON     421 the Host header is not allowed     499 cancelled, as when the client left
500 the server's fault
429 queue full, over the key's limit, or too many streams of the same requests (Retry-After)
503 Redis does not answer, the keys cannot be read, or the server stops (Retry-After)
"""

import logging
import math
from collections.abc import Mapping
from typing import Any, Literal

from flask import Flask, Response, request
from kombu.exceptions import OperationalError
from pydantic import BaseModel, ValidationError
from werkzeug.exceptions import HTTPException

from app.errors import (
    InvalidRequest,
    KeysUnreadable,
    NotFound,
    OverLimit,
    PacelineError,
    QueueFull,
    RequestCancelled,
    StoreUnavailable,
    TooManyReaders,
    Unauthorized,
    UnknownModel,
    Unsupported,
    validation_message,
)
from app.request import GenerateRequest

log = logging.getLogger(__name__)

RETRY_AFTER_S = 1  # Redis restarts in about a second
BODY = "body"  # the field of an error that concerns several fields or the JSON itself
V1 = "/v1"  # below it errors have OpenAI's shape,
MESSAGES = "/v1/messages"  # and below this Anthropic's
V1_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
MESSAGES_TYPES = {
    401: "authentication_error", 404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error",
    503: "overloaded_error",
}  # fmt: skip
V1_CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded"}
V1_DETAIL_CODES = {  # by the type of a detail
    "missing": "missing_required_parameter",
    "extra_forbidden": "unknown_parameter",
    "unsupported": "unsupported_parameter",
    "unknown_model": "model_not_found",
}


class Detail(BaseModel):
    """One wrong field. `type`: for programs."""

    field: str
    message: str
    type: str


class Error(BaseModel):
    """An error's message. `field`: the first wrong one."""

    message: str
    field: str | None
    details: list[Detail]


class ErrorAnswer(BaseModel):
    error: Error


class V1Error(BaseModel):
    """An error's message. `param`: the first wrong field."""

    message: str
    type: str
    param: str | None
    code: str | None


class V1ErrorAnswer(BaseModel):
    error: V1Error


class MessagesError(BaseModel):
    """An error's message, with the first wrong field at its begin."""

    type: str
    message: str


class MessagesErrorAnswer(BaseModel):
    type: Literal["error"] = "error"
    error: MessagesError


class InvalidBody(Exception):
    """`names`: the caller's names of fields, if they differ from the model's."""

    def __init__(self, error: ValidationError, names: Mapping[str, str] | None = None) -> None:
        super().__init__(str(error))
        self.error, self.names = error, names or {}


def error_model(path: str) -> type[BaseModel]:
    """Return whose shape the errors of a path have."""
    models = ((MESSAGES, MessagesErrorAnswer), (V1, V1ErrorAnswer))
    return next((one for below, one in models if path == below or path.startswith(f"{below}/")), ErrorAnswer)


def install(app: Flask) -> None:
    app.register_error_handler(InvalidBody, _invalid_body)
    app.register_error_handler(PacelineError, _ours)
    app.register_error_handler(OperationalError, _no_redis)  # doorbells reach Redis through Celery
    app.register_error_handler(HTTPException, _http)
    app.register_error_handler(Exception, _unexpected)


def error_body(message: str, field: str | None = None, details: list[Detail] | None = None) -> str:
    return ErrorAnswer(error=Error(message=message, field=field, details=details or [])).model_dump_json()


def v1_error_body(status: int, message: str, field: str | None = None, kind: str = "") -> str:
    default = "invalid_value" if status == 400 else None
    error = V1Error(
        message=message,
        type=V1_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error"),
        param=None if field == BODY else field,
        code=V1_DETAIL_CODES.get(kind, V1_CODES.get(status, default)),
    )
    return V1ErrorAnswer(error=error).model_dump_json()


def messages_error_body(status: int, message: str) -> str:
    kind = MESSAGES_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return MessagesErrorAnswer(error=MessagesError(type=kind, message=message)).model_dump_json()


def _invalid_body(invalid: InvalidBody) -> Response:
    # without the input: it may hold a prompt, and NaN is not JSON
    found = invalid.error.errors(include_input=False, include_url=False, include_context=False)
    details = [_detail(item, invalid.names) for item in found]
    first = details[0]
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    return _answer(400, f"{first.field}: {first.message}{more}", details)


def _detail(item: Any, names: Mapping[str, str]) -> Detail:
    message = validation_message(item)
    first, *rest = [str(part) for part in item["loc"]] or [_named(message)]
    field = ".".join([names.get(first, first), *rest])
    return Detail(field=field, message=message, type=item["type"])


def _named(message: str) -> str:
    """Return the field that an error of the whole body begins with."""
    word = message.split(" ", 1)[0]
    return word if word in GenerateRequest.model_fields else BODY


def _ours(error: PacelineError) -> Response:
    match error:
        case InvalidRequest():
            kind = "unsupported" if isinstance(error, Unsupported) else "invalid_request"
            return _answer(400, str(error), [Detail(field=error.field, message=error.message, type=kind)])
        case UnknownModel():
            return _answer(404, str(error), [Detail(field="model", message=str(error), type="unknown_model")])
        case NotFound():
            return _answer(404, "the request does not exist, or has expired")
        case Unauthorized():
            response = _answer(401, str(error))
            response.headers["WWW-Authenticate"] = "Bearer"
            return response
        case QueueFull() | OverLimit() | TooManyReaders():
            return _answer(429, str(error), retry_after_s=error.retry_after_s)
        case StoreUnavailable():
            return _no_redis(error)
        case KeysUnreadable():  # the caller must not learn the path
            log.error("%s", error)
            return _answer(503, "the API keys cannot be read; try again", retry_after_s=RETRY_AFTER_S)
        case RequestCancelled():
            log.info("%s", error)
            return _answer(499, str(error))
        case _:
            log.error("%s", error, exc_info=error)
            return _answer(500, str(error))


def _no_redis(error: Exception) -> Response:
    log.warning("%s", error)
    return _answer(503, "the store does not answer; try again", retry_after_s=RETRY_AFTER_S)


def _http(error: HTTPException) -> Response:
    retry_after_s = RETRY_AFTER_S if error.code == 503 else None  # of a server that stops: another one takes its place
    response = _answer(error.code or 500, error.description or error.name, retry_after_s=retry_after_s)
    for name, value in error.get_headers():
        if name.lower() == "allow":
            response.headers[name] = value
    return response


def _unexpected(error: Exception) -> Response:
    log.error("request failed", exc_info=error)
    return _answer(500, "internal error")


def _answer(
    status: int, message: str, details: list[Detail] | None = None, *, retry_after_s: float | None = None
) -> Response:
    first = details[0] if details else None
    field = first.field if first else None
    model = error_model(request.path)
    if model is MessagesErrorAnswer:
        body = messages_error_body(status, message)
    elif model is V1ErrorAnswer:
        body = v1_error_body(status, message, field, first.type if first else "")
    else:
        body = error_body(message, field, details)
    response = Response(body, status=status, mimetype="application/json")
    response.headers["Cache-Control"] = "no-store"
    if retry_after_s is not None:
        response.headers["Retry-After"] = str(max(1, math.ceil(retry_after_s)))
    return response

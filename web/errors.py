"""Errors as HTTP answers: each kind has one status, here and nowhere else. JSON always, never a traceback.

{"error": {"message": ..., "field": the first wrong field or null, "details": [{"field", "message", "type"}]}}

400 wrong input     404 no such request, no such page     413 body too large     415 body is not JSON
429 queue full (Retry-After)     503 Redis does not answer (Retry-After)     500 our fault
"""

import json
import logging
import math
from typing import Any

from flask import Flask, Response
from kombu.exceptions import OperationalError
from pydantic import ValidationError
from werkzeug.exceptions import HTTPException

from app.errors import InvalidRequest, NotFound, PacelineError, QueueFull, StoreUnavailable

log = logging.getLogger(__name__)

RETRY_AFTER_S = 1  # Redis restarts in about a second
BODY = "body"  # the field of an error that concerns several fields or the JSON itself


class InvalidBody(Exception):
    """A request's body does not fit its model. Its own class: a ValidationError elsewhere is our fault."""

    def __init__(self, error: ValidationError) -> None:
        super().__init__(str(error))
        self.error = error


def install(app: Flask) -> None:
    """Register a handler for everything that can be raised."""
    app.register_error_handler(InvalidBody, _invalid_body)
    app.register_error_handler(PacelineError, _ours)
    app.register_error_handler(OperationalError, _no_redis)  # the doorbell's way to Redis is Celery's
    app.register_error_handler(HTTPException, _http)
    app.register_error_handler(Exception, _unexpected)


def error_body(message: str, field: str | None = None, details: list[dict[str, str]] | None = None) -> str:
    """The JSON of an error, for answers and for streams."""
    return json.dumps({"error": {"message": message, "field": field, "details": details or []}})


def _invalid_body(invalid: InvalidBody) -> Response:
    # without the input: it may hold a prompt, and NaN is not JSON
    details = [
        _detail(item) for item in invalid.error.errors(include_input=False, include_url=False, include_context=False)
    ]
    first = details[0]
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    body = error_body(f"{first['field']}: {first['message']}{more}", first["field"], details)
    return _answer(400, body)


def _detail(item: Any) -> dict[str, str]:
    field = ".".join(str(part) for part in item["loc"]) or BODY
    return {"field": field, "message": item["msg"].removeprefix("Value error, "), "type": item["type"]}


def _ours(error: PacelineError) -> Response:
    match error:
        case InvalidRequest():
            detail = {"field": error.field, "message": error.message, "type": "invalid_request"}
            return _answer(400, error_body(str(error), error.field, [detail]))
        case NotFound():
            return _answer(404, error_body("no such request, or it has been forgotten"))
        case QueueFull():
            return _answer(429, error_body(str(error)), retry_after_s=error.retry_after_s)
        case StoreUnavailable():
            log.warning("%s", error)
            return _answer(503, error_body("the store does not answer; try again"), retry_after_s=RETRY_AFTER_S)
        case _:
            log.error("%s", error, exc_info=error)
            return _answer(500, error_body(str(error)))


def _no_redis(error: Exception) -> Response:
    log.warning("%s", error)
    return _answer(503, error_body("the store does not answer; try again"), retry_after_s=RETRY_AFTER_S)


def _http(error: HTTPException) -> Response:
    response = _answer(error.code or 500, error_body(error.description or error.name))
    for name, value in error.get_headers():
        if name.lower() == "allow":
            response.headers[name] = value
    return response


def _unexpected(error: Exception) -> Response:
    log.error("request failed", exc_info=error)
    return _answer(500, error_body("internal error"))


def _answer(status: int, body: str, *, retry_after_s: float | None = None) -> Response:
    response = Response(body, status=status, mimetype="application/json")
    response.headers["Cache-Control"] = "no-store"
    if retry_after_s is not None:
        response.headers["Retry-After"] = str(max(1, math.ceil(retry_after_s)))
    return response

"""Send a request to a running instance's JSON API and follow its stream to the end.

A stream that breaks off (the web server was restarted) is resumed at its offset.
"""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from typing import Any

from pydantic import SecretStr

from app.errors import GenerationFailed, InvalidRequest, PacelineError
from app.messages import Result
from app.request import GenerateRequest

OnText = Callable[[str], None]
SILENCE_S = 10.0  # the stream sends a heartbeat every 3 s
RESUME_S = 60.0  # of attempts to resume a broken stream
RETRY_S = 0.3


def generate(
    url: str,
    request: GenerateRequest,
    on_text: OnText | None,
    api_key: SecretStr | None = None,
    resume_s: float = RESUME_S,
) -> Result:
    """Run a request on the instance at `url`, with a key if it needs one; `on_text` gets each new piece of text."""
    key = {} if api_key is None else {"Authorization": f"Bearer {api_key.get_secret_value()}"}
    body = {**request.model_dump(mode="json", exclude_none=True), "stream": True}
    headers = {"Content-Type": "application/json", **key}
    response = _open(urllib.request.Request(f"{url}/api/generate", json.dumps(body).encode(), headers))
    follower = _Follower(on_text)
    request_id = response.headers.get("X-Request-Id")
    place = None if request_id is None else urllib.request.Request(f"{url}/api/requests/{request_id}", headers=key)
    try:
        return _follow(place, response, follower, resume_s)
    except KeyboardInterrupt:
        _cancel(place)  # the rest is not read
        raise


def _follow(
    place: urllib.request.Request | None, response: HTTPResponse, follower: "_Follower", resume_s: float
) -> Result:
    broken_s = time.monotonic()
    while True:
        before = follower.offset
        with response:
            result = follower.read(response)
        if result is not None:
            return result
        if follower.offset > before:
            broken_s = time.monotonic()
        response = _resume(place, follower, broken_s + resume_s)


def _cancel(place: urllib.request.Request | None) -> None:
    if place is None:
        return
    with suppress(OSError):
        urllib.request.urlopen(urllib.request.Request(place.full_url, headers=place.headers, method="DELETE")).close()


class _Follower:
    def __init__(self, on_text: OnText | None) -> None:
        self._on_text = on_text
        self.offset = 0  # generated tokens seen
        self.last_error = "the stream broke off before its end"

    def read(self, response: HTTPResponse) -> Result | None:
        """Read to the end; None when the stream broke off before it."""
        try:
            for kind, data in _frames(response):
                if kind == "end":
                    return Result.model_validate(data)
                if kind == "tokens":
                    if data["offset"] != self.offset:
                        raise GenerationFailed(f"the stream skipped to token {data['offset']} from {self.offset}")
                    self.offset += len(data["tokens"])
                    if self._on_text is not None:
                        self._on_text(data["text"])
                elif kind == "error":  # this stream cannot go on; the request may
                    self.last_error = _explanation(data)
                    return None
        except (OSError, HTTPException):
            pass
        return None


def _frames(response: HTTPResponse) -> Iterator[tuple[str, dict[str, Any]]]:
    kind, data = "message", ""
    for raw in response:
        line = raw.decode(errors="replace").rstrip("\r\n")  # it may have broken off within a character
        if not line:
            if data:
                yield kind, json.loads(data)
            kind, data = "message", ""
        elif line.startswith("event:"):
            kind = line[6:].strip()
        elif line.startswith("data:"):
            data += line[5:].strip()


def _open(request: urllib.request.Request) -> HTTPResponse:
    try:
        response: HTTPResponse = urllib.request.urlopen(request, timeout=SILENCE_S)
        return response
    except urllib.error.HTTPError as error:
        with error:
            raise _refusal(error) from error
    except (OSError, HTTPException) as error:
        raise PacelineError(f"the running instance does not answer: {getattr(error, 'reason', error)}") from error


def _resume(place: urllib.request.Request | None, follower: _Follower, deadline: float) -> HTTPResponse:
    while True:
        time.sleep(RETRY_S)
        if place is None or time.monotonic() > deadline:
            raise GenerationFailed(follower.last_error)
        try:
            stream = f"{place.full_url}/stream?offset={follower.offset}"
            return _open(urllib.request.Request(stream, headers=place.headers))
        except InvalidRequest:
            raise
        except PacelineError:
            continue  # the web server is not back yet


def _refusal(error: urllib.error.HTTPError) -> PacelineError:
    text = error.read().decode(errors="replace")
    try:
        body = json.loads(text)
    except ValueError:
        return PacelineError(f"the running instance answers {error.code}: {text[:200]}")
    if error.code == HTTPStatus.UNAUTHORIZED:
        return PacelineError(f"{_explanation(body)} (the key sent is PACELINE_API_KEY)")
    return _Refused(_explanation(body)) if error.code in (400, 404, 422) else PacelineError(_explanation(body))


class _Refused(InvalidRequest):
    """The server's sentence about wrong input, which names the field already."""

    def __init__(self, text: str) -> None:
        Exception.__init__(self, text)
        self.field, self.message = "request", text


def _explanation(body: Any) -> str:
    found = body.get("error", body) if isinstance(body, dict) else body
    if isinstance(found, dict):
        found = found.get("message", found)
    return found if isinstance(found, str) else json.dumps(found)

"""Speak HTTP to a server: generate a text, follow its stream, take a broken stream up again."""

import json
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from threading import Event
from typing import Any
from urllib.parse import urlsplit

from paceline.errors import Error

SILENCE_S = 30.0  # the longest; a stream has a heartbeat every few seconds
RESUME_S = 30.0  # for so long a broken stream is tried again: a server that was killed is back before
RETRY_S = 0.3
FULL_S = 120.0  # for so long a full server is tried again
FULL = (429, 503)


class Stopped(Exception):
    """Another request of the same call has failed."""


class Server:
    """`lost` says why the server will not come back, if that is known."""

    def __init__(self, url: str, api_key: str | None, lost: Callable[[], str | None]) -> None:
        self.url = url.rstrip("/")
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Error(f"url: {url!r} is no address of a server, such as http://127.0.0.1:8000")
        self._kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._place, self._path = parts.netloc, parts.path
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._lost = lost

    def check_ready(self) -> None:
        try:
            with closing(self._connection()) as connection:
                found = json.loads(self._sent(connection, "GET", "/readyz").read())
            ready, missing = found["ready"], ", ".join(found["missing"])
        except (OSError, HTTPException) as error:
            raise self._silent(error) from error
        except (ValueError, TypeError, KeyError) as error:
            raise Error(f"what answers at {self.url} is no server of Paceline's") from error
        if not ready:
            raise Error(f"the server at {self.url} is not ready; it lacks {missing}")

    def generate(self, fields: Mapping[str, Any], stop: Event) -> Generator[str, None, dict[str, Any]]:
        """Yield the pieces of a text; return the result. A generator that is closed cancels its request."""
        with closing(self._connection()) as connection:
            response = self._begin(connection, fields, stop)
            place = f"/api/requests/{response.headers['X-Request-Id']}"
            result = None
            try:
                result = yield from self._follow(connection, response, place, stop)
            finally:
                if result is None:
                    self._cancel(place)
        if result["status"] == "failed":
            raise Error(result["error"] or "the request failed")
        return result

    def _begin(self, connection: HTTPConnection, fields: Mapping[str, Any], stop: Event) -> HTTPResponse:
        try:
            body = json.dumps({**fields, "stream": True}).encode()
        except (TypeError, ValueError) as error:
            raise Error(f"a field cannot be written as JSON: {error}") from error
        deadline = time.monotonic() + FULL_S
        while True:
            try:
                response = self._sent(connection, "POST", "/api/generate", body)
                if response.status == 200:
                    return response
                why = _explanation(response)
            except (OSError, HTTPException) as error:
                raise self._silent(error) from error
            wait_s = float(response.headers.get("Retry-After", "1"))
            if response.status not in FULL or time.monotonic() + wait_s > deadline:
                raise Error(why)
            if stop.wait(wait_s):
                raise Stopped

    def _follow(
        self, connection: HTTPConnection, response: HTTPResponse, place: str, stop: Event
    ) -> Generator[str, None, dict[str, Any]]:
        offset, why = 0, "the stream broke off"
        deadline: float | None = None  # of a stream that is broken
        while True:
            try:
                with response:
                    for kind, data in _frames(response):
                        if stop.is_set():
                            raise Stopped
                        if kind == "end":
                            return data
                        if kind == "tokens":
                            offset, deadline = data["offset"] + len(data["tokens"]), None
                            yield data["text"]
                        elif kind == "error":  # this stream cannot go on; the request may
                            why = data["error"]["message"]
                            break
            except (OSError, HTTPException) as error:
                why = str(error) or why
            connection.close()
            deadline = time.monotonic() + RESUME_S if deadline is None else deadline
            response = self._resume(connection, f"{place}/stream?offset={offset}", deadline, why, stop)

    def _resume(self, connection: HTTPConnection, stream: str, deadline: float, why: str, stop: Event) -> HTTPResponse:
        while time.monotonic() < deadline:
            if (end := self._lost()) is not None:
                raise Error(f"the stream broke off: {end}")
            if stop.wait(RETRY_S):
                raise Stopped
            try:
                response = self._sent(connection, "GET", stream)
                if response.status == 200:
                    return response
                why = _explanation(response)
                if response.status not in FULL:
                    raise Error(f"the stream broke off, and cannot go on: {why}")
            except (OSError, HTTPException) as error:  # it is not back yet
                why = str(error) or why
            connection.close()
        raise Error(f"the stream from {self.url} broke off, and could not be taken up again: {why}")

    def _cancel(self, place: str) -> None:
        with suppress(OSError, HTTPException), closing(self._connection()) as connection:
            self._sent(connection, "DELETE", place).read()

    def _connection(self) -> HTTPConnection:
        return self._kind(self._place, timeout=SILENCE_S)

    def _sent(self, connection: HTTPConnection, method: str, path: str, body: bytes | None = None) -> HTTPResponse:
        connection.request(method, self._path + path, body, self._headers)
        return connection.getresponse()

    def _silent(self, error: Exception) -> Error:
        return Error(self._lost() or f"no server answers at {self.url}: {error}")


def _frames(response: HTTPResponse) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield events by kind, and heartbeats as ("", {})."""
    kind, data = "", ""
    for raw in response:
        line = raw.decode(errors="replace").rstrip("\r\n")  # it may have broken off within a character
        if not line:
            yield kind, json.loads(data) if data else {}
            kind, data = "", ""
        elif line.startswith("event:"):
            kind = line[6:].strip()
        elif line.startswith("data:"):
            data += line[5:].strip()


def _explanation(response: HTTPResponse) -> str:
    text = response.read().decode(errors="replace")
    try:
        why = str(json.loads(text)["error"]["message"])
    except (ValueError, TypeError, KeyError):
        why = f"the server answers {response.status}: {text[:200]}"
    return f"{why} (the key sent is `api_key`, else PACELINE_API_KEY)" if response.status == 401 else why

"""Every error Paceline raises on purpose.

PacelineError
  InvalidSettings     a setting has no such value, or there is no such setting (names it)
  InvalidRequest      the caller's input is wrong (names the field)
    Unsupported       what the field asks for cannot be had here
  UnknownModel        another model than the one served was asked for
  NotFound            no such request (never was, or its time to live is over)
  Unauthorized        the caller shows no API key, or one that is not known
  OverLimit           more than the caller's key may ask for; try again after `retry_after_s`
  TooManyReaders      the same requests are followed too often already; try again after `retry_after_s`
  QueueFull           too many requests wait; try again after `retry_after_s`
  ModelRefused        a model, drafter or tokenizer that cannot be served, and why
  StoreUnavailable    Redis does not answer
  KeysUnreadable      the file of API keys cannot be read, so nobody is let in
  GenerationFailed    an accepted request ended with an error
  InstanceError       `up` cannot start or find its processes on this machine, and why
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class PacelineError(Exception):
    """Base of all; its text is fit to be shown to a user."""


class InvalidSettings(PacelineError):
    """A variable of the environment, or a key of the file, that cannot be."""


class InvalidRequest(PacelineError):
    """The caller's input is wrong. `field` is the dotted name of what is wrong."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


class Unsupported(InvalidRequest):
    """What the field asks for cannot be had here."""


class UnknownModel(PacelineError):
    """Another model than the one served was asked for."""

    def __init__(self, asked: str, served: str) -> None:
        super().__init__(f"the model {asked[:200]!r} is not served here; {served!r} is")


class NotFound(PacelineError):
    """No such request."""


class QueueFull(PacelineError):
    """Too many requests are waiting."""

    def __init__(self, waiting: int, retry_after_s: float) -> None:
        super().__init__(f"{waiting} requests are waiting; try again in {retry_after_s:.0f} s")
        self.retry_after_s = retry_after_s


class Unauthorized(PacelineError):
    """The caller shows no API key, or one that is not known."""


class OverLimit(PacelineError):
    """More than the caller's key may ask for."""

    def __init__(self, limit: str, retry_after_s: float) -> None:
        super().__init__(f"the limit of this key is {limit}; try again in {retry_after_s:.0f} s")
        self.retry_after_s = retry_after_s


class TooManyReaders(PacelineError):
    """The same requests are followed too often already."""

    retry_after_s = 2.0  # how soon the place of a client that has gone is free

    def __init__(self, most: int, each: int) -> None:
        own = "" if each >= most else f", {each} for one tenant"
        when = f"try again in {self.retry_after_s:.0f} s"
        super().__init__(f"this server has {most} places{own} for further readers of requests; {when}")


class KeysUnreadable(PacelineError):
    """The file of API keys cannot be read."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"the API keys in {path}: {why}")


class ModelRefused(PacelineError):
    """A model, drafter or tokenizer that cannot be served."""


class StoreUnavailable(PacelineError):
    """Redis does not answer."""


class GenerationFailed(PacelineError):
    """An accepted request ended with an error."""


class InstanceError(PacelineError):
    """The processes of `up` cannot be started or found."""


def validation_message(item: Mapping[str, Any]) -> str:
    """What pydantic says of one thing that is wrong (an item of `ValidationError.errors()`), fit for a user."""
    return "there is no such field" if item["type"] == "extra_forbidden" else item["msg"].removeprefix("Value error, ")

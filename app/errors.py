"""Define every error that Paceline raises on purpose.

PacelineError
  InvalidSettings     a setting has no such value, or there is no such setting (names it)
  InvalidRequest      the caller's input is wrong (names the field)
    Unsupported       the field asks for a feature that is not to be had here
  UnknownModel        the request names another model than the one served
  NotFound            no such request (never was, or its time to live is over)
  Unauthorized        the caller shows no API key, or one that is not known
  OverLimit           more than the caller's key may ask for; try again after `retry_after_s`
  TooManyReaders      the same requests are followed too often already; try again after `retry_after_s`
  QueueFull           too many requests wait; try again after `retry_after_s`
  ModelRefused        a model, drafter or tokenizer that cannot be served, and why
  StoreUnavailable    Redis does not answer
  KeysUnreadable      the file of API keys cannot be read, so every call is refused
  MessageError        an item of mail or of the store is no message of its kind
  GenerationFailed    an accepted request ended with an error
  InstanceError       `up` cannot start or find its processes on this machine, and why
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class PacelineError(Exception):
    """Base of all errors; its text is fit for a user."""


class InvalidSettings(PacelineError):
    """Report a wrong variable of the environment, or a wrong key of the file."""


class InvalidRequest(PacelineError):
    """Report wrong input of the caller. `field` is the dotted name of the wrong part."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


class Unsupported(InvalidRequest):
    """Report a field that asks for a feature that is not to be had here."""


class UnknownModel(PacelineError):
    """Report a request for another model than the one served."""

    def __init__(self, requested: str, served: str) -> None:
        super().__init__(f"the model {requested[:200]!r} is not served here; {served!r} is")


class NotFound(PacelineError):
    """Report an unknown request."""


class QueueFull(PacelineError):
    """Report that too many requests wait."""

    def __init__(self, waiting: int, retry_after_s: float) -> None:
        super().__init__(f"{waiting} requests are waiting; try again in {retry_after_s:.0f} s")
        self.retry_after_s = retry_after_s


class Unauthorized(PacelineError):
    """Report a call without an API key, or with an unknown one."""


class OverLimit(PacelineError):
    """Report a call beyond the limits of its key."""

    def __init__(self, limit: str, retry_after_s: float) -> None:
        super().__init__(f"the limit of this key is {limit}; try again in {retry_after_s:.0f} s")
        self.retry_after_s = retry_after_s


class TooManyReaders(PacelineError):
    """Report that the same requests have too many followers already."""

    retry_after_s = 2.0  # until the place of a client that left is free

    def __init__(self, most: int, each: int) -> None:
        own = "" if each >= most else f", {each} for one tenant"
        when = f"try again in {self.retry_after_s:.0f} s"
        super().__init__(f"this server has {most} places{own} for further readers of requests; {when}")


class KeysUnreadable(PacelineError):
    """Report an unreadable file of API keys."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"the API keys in {path}: {why}")


class ModelRefused(PacelineError):
    """Report a model, drafter or tokenizer that cannot be served."""


class NoIntegerProducts(ModelRefused):
    """Int8 activations were asked for, and the model has no product of integers to use them in."""


class StoreUnavailable(PacelineError):
    """Report that Redis does not answer."""


class MessageError(PacelineError):
    """Report an item of mail, or of the store, that is no message of its kind."""


class GenerationFailed(PacelineError):
    """Report that an accepted request ended with an error."""


class InstanceError(PacelineError):
    """Report that the processes of `up` cannot be started or found."""


def validation_message(item: Mapping[str, Any]) -> str:
    """Reword an item of pydantic's `ValidationError.errors()` for a user."""
    return "there is no such field" if item["type"] == "extra_forbidden" else item["msg"].removeprefix("Value error, ")

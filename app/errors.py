"""Define every error that Paceline raises on purpose.

PacelineError
  InvalidSettings     a setting has a wrong value or does not exist
  InvalidRequest      the caller's input is wrong
    Unsupported       a field asks for a missing feature
  UnknownModel
  NotFound            the request is unknown or expired
  Unauthorized        no API key, or an unknown one
  OverLimit           the key's limits; try again after `retry_after_s`
  TooManyReaders      the server has no thread for another stream; the same
  QueueFull           the same
  ModelRefused        a model, drafter or tokenizer cannot be served
  StoreUnavailable    Redis does not answer
  KeysUnreadable      the file of API keys cannot be read
  MessageError        an item of mail or of the store is no message of its kind
  GenerationFailed    an accepted request ended with an error
    RequestCancelled  it was cancelled, as when its client left
  InstanceError       `up` cannot start or find its processes
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class PacelineError(Exception):
    """Base of all errors; its text is fit for a user."""


class InvalidSettings(PacelineError): ...


class InvalidRequest(PacelineError):
    """The caller's input is wrong. `field` is the dotted name of the wrong part."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


class Unsupported(InvalidRequest): ...


class UnknownModel(PacelineError):
    def __init__(self, requested: str, served: str) -> None:
        super().__init__(f"the model {requested[:200]!r} is not served here; the served model is {served!r}")


class NotFound(PacelineError): ...


class QueueFull(PacelineError):
    def __init__(self, waiting: int, retry_after_s: float) -> None:
        super().__init__(f"{waiting} requests are waiting; try again in {retry_after_s:.0f} s")
        self.retry_after_s = retry_after_s


class Unauthorized(PacelineError): ...


class OverLimit(PacelineError):
    def __init__(self, limit: str, retry_after_s: float) -> None:
        super().__init__(f"this API key allows {limit}; try again in {retry_after_s:.0f} s")
        self.retry_after_s = retry_after_s


class TooManyReaders(PacelineError):
    retry_after_s = 2.0  # until the place of a client that left is free

    def __init__(self, most: int, each: int) -> None:
        own = "" if each >= most else f", {each} for one tenant"
        when = f"try again in {self.retry_after_s:.0f} s"
        super().__init__(f"this server allows {most} streams{own} beside the first of each request; {when}")


class KeysUnreadable(PacelineError):
    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"the file of API keys {path} cannot be used: {why}")


class ModelRefused(PacelineError): ...


class NoIntegerProducts(ModelRefused):
    """Int8 activations are set, and the model has no product of integers to use them in."""


class TargetLost(PacelineError):
    """The target runs no more steps in this process; a process that replaces it can."""


class StoreUnavailable(PacelineError): ...


class NotDurable(StoreUnavailable): ...


class MessageError(PacelineError): ...


class GenerationFailed(PacelineError): ...


class RequestCancelled(GenerationFailed): ...


class InstanceError(PacelineError): ...


def system_message(error: OSError) -> str:
    """Reword an error of the operating system for a user."""
    why = error.strerror or str(error)
    return why if error.filename is None else f"{error.filename} cannot be used: {why}"


def validation_message(item: Mapping[str, Any]) -> str:
    """Reword an item of pydantic's `ValidationError.errors()` for a user."""
    return (
        "this field does not exist" if item["type"] == "extra_forbidden" else item["msg"].removeprefix("Value error, ")
    )

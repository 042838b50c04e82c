"""Define every error that Paceline raises on purpose.

PacelineError
  InvalidSettings   a variable or a key of the file is wrong or unknown
  InvalidRequest    the caller's input is wrong
    Unsupported
  UnknownModel
  NotFound          the request is unknown or has expired
  Unauthorized
  OverLimit         of an API key; it says when to try again, as the next two do
  TooManyReaders    of the same requests
  QueueFull
  ModelRefused      a model, drafter or tokenizer cannot be served
    NoIntegerProducts
  StoreUnavailable  Redis does not answer
  KeysUnreadable    the file of API keys, so every call is refused
  MessageError      mail or a stored item is no message of its kind
  GenerationFailed  an accepted request ended with an error
  InstanceError     `up` cannot start or find its processes
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class PacelineError(Exception):
    """Base of all errors; its text is fit for a user."""


class InvalidSettings(PacelineError):
    pass


class InvalidRequest(PacelineError):
    """The caller's input is wrong; `field` is the dotted name of the wrong part."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


class Unsupported(InvalidRequest):
    """A field asks for a feature that this server lacks."""


class UnknownModel(PacelineError):
    def __init__(self, requested: str, served: str) -> None:
        super().__init__(f"the model {requested[:200]!r} is not served here; {served!r} is")


class NotFound(PacelineError):
    pass


class QueueFull(PacelineError):
    def __init__(self, waiting: int, retry_after_s: float) -> None:
        super().__init__(f"{waiting} requests are waiting; try again in {retry_after_s:.0f} s")
        self.retry_after_s = retry_after_s


class Unauthorized(PacelineError):
    pass


class OverLimit(PacelineError):
    def __init__(self, limit: str, retry_after_s: float) -> None:
        super().__init__(f"the limit of this key is {limit}; try again in {retry_after_s:.0f} s")
        self.retry_after_s = retry_after_s


class TooManyReaders(PacelineError):
    retry_after_s = 2.0  # until the place of a client that left is free

    def __init__(self, most: int, each: int) -> None:
        own = "" if each >= most else f", {each} for one tenant"
        when = f"try again in {self.retry_after_s:.0f} s"
        super().__init__(f"this server has {most} places{own} for further readers of requests; {when}")


class KeysUnreadable(PacelineError):
    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"the API keys in {path}: {why}")


class ModelRefused(PacelineError):
    pass


class NoIntegerProducts(ModelRefused):
    """Int8 activations are set for a model without integer products."""


class StoreUnavailable(PacelineError):
    pass


class MessageError(PacelineError):
    pass


class GenerationFailed(PacelineError):
    pass


class InstanceError(PacelineError):
    pass


def validation_message(item: Mapping[str, Any]) -> str:
    """Reword an item of pydantic's `ValidationError.errors()`."""
    return "there is no such field" if item["type"] == "extra_forbidden" else item["msg"].removeprefix("Value error, ")

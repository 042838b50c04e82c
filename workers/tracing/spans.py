"""Define a span of work, and the protocol of its sinks."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from app.verifier.metrics import RequestProgress


class WorkSpan(NamedTuple):
    """Named by the kind of its worker; seconds of the wall clock."""

    name: str
    start_s: float
    end_s: float
    request_ids: tuple[str, ...]


class Sink(Protocol):
    """Called from the heartbeat's thread."""

    def write(self, spans: Sequence[WorkSpan], progress: Mapping[str, RequestProgress]) -> None: ...

    def close(self) -> None: ...

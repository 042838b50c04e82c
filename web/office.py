"""What the web tier needs of the back office: the part of workers.office.Office that it uses."""

from pathlib import Path
from typing import Protocol

from app.config import Settings
from app.engine.tokenizer import Tokenizer
from app.messages import GenerateRequest, Record
from app.store.nodes import Node
from app.store.protocol import Requests


def model_name(settings: Settings) -> str:
    """What clients call the target; where it lies is not their business."""
    return Path(settings.model).name


class Roll(Protocol):
    """Who lives: the readable part of app.store.nodes.Nodes."""

    def live(self, kind: str | None = None) -> list[Node]: ...


class Office(Protocol):
    """Takes requests in and knows what became of them."""

    @property
    def settings(self) -> Settings: ...
    @property
    def requests(self) -> Requests: ...
    @property
    def nodes(self) -> Roll: ...
    @property
    def tokenizer(self) -> Tokenizer: ...

    def submit(self, request: GenerateRequest) -> Record: ...

"""What the web tier needs of the back deployment: the part of workers.deployment.Office that it uses."""

from pathlib import Path
from typing import Protocol

from app.config import Settings
from app.engine.text.tokenizer import Tokenizer
from app.messages import PUBLIC_TENANT, Record
from app.policy import Policy
from app.request import GenerateRequest
from app.store.history import History
from app.store.mailbox import Mailboxes
from app.store.protocol import Node, Requests
from app.store.rate_limits import RateLimits
from app.store.shared_stats import SharedStatsStore
from app.store.tasks import WaitingRoom
from app.store.traces import Traces


def model_name(settings: Settings) -> str:
    """What clients call the target; where it lies is not their business."""
    return Path(settings.model).name


class Roll(Protocol):
    """Who lives: the readable part of app.store.nodes.Nodes."""

    def live(self, kind: str | None = None) -> list[Node]: ...
    def policy(self) -> Policy: ...
    def try_lock(self, name: str, ttl_s: float) -> bool: ...


class Office(Protocol):
    """Takes requests in and knows what became of them."""

    @property
    def settings(self) -> Settings: ...
    @property
    def requests(self) -> Requests: ...
    @property
    def nodes(self) -> Roll: ...
    @property
    def shared_stats(self) -> SharedStatsStore: ...
    @property
    def mailboxes(self) -> Mailboxes: ...
    @property
    def waiting(self) -> WaitingRoom: ...
    @property
    def traces(self) -> Traces: ...
    @property
    def history(self) -> History: ...
    @property
    def rate_limits(self) -> RateLimits: ...
    @property
    def tokenizer(self) -> Tokenizer: ...

    def submit(
        self, request: GenerateRequest, *, request_id: str | None = None, tenant: str = PUBLIC_TENANT
    ) -> Record: ...

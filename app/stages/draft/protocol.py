"""What every drafter is: contexts in, guesses out, in batches. It may be wrong or silent, never raise."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from app.messages import Draft
from app.request import Sampling


@dataclass(slots=True)
class Context:
    """One sequence to guess on. `tokens` is shared with its owner: read it, never change it."""

    request_id: str
    tenant: str
    tokens: list[int]  # prompt + committed
    prompt_length: int
    max_draft_tokens: int
    sampling: Sampling
    state: bytes | None = None  # the target's last hidden state where it chose the last token, d float16


class Drafter(Protocol):
    """Guesses the next tokens. One process, one thread. Caches only: everything it knows can be lost."""

    name: str

    def draft(self, contexts: Sequence[Context]) -> list[Draft]:
        """At most one draft a context, `base` = its length; fewer or none where nothing is worth saying."""
        ...

    def update(self, context: Context) -> None:
        """Learn from what was committed since the last call for this request. May do nothing."""
        ...

    def remove(self, request_id: str) -> None:
        """The request is over: free what only it needs."""
        ...

"""Define the protocol of drafters: contexts in, drafts out, in batches."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from app.messages import LEAST_SURVIVAL, Draft
from app.request import Sampling


@dataclass(slots=True)
class Context:
    """One sequence to guess on. `tokens` is its owner's list: never change it."""

    request_id: str
    tenant: str
    tokens: list[int]  # prompt + committed
    prompt_length: int
    max_draft_tokens: int
    sampling: Sampling
    least_survival: float = LEAST_SURVIVAL  # of a guess that a model goes on from
    max_nodes: int = 0  # this and the fields below but `state`: see `app.messages.DraftJob`
    pace: float = 0.0
    step_s: float = 0.0
    state: bytes | None = None  # the target's last hidden state where it chose the last token, d float16
    has_leaves: bool = True
    is_reading: bool = False


def draft_of(
    name: str, context: Context, tokens: Iterable[int], parents: Iterable[int], chances: Iterable[float]
) -> Draft:
    return Draft(
        request_id=context.request_id,
        base=len(context.tokens),
        drafter=name,
        tokens=tuple(tokens),
        parents=tuple(parents),
        confidences=tuple(chances),
    )


class Drafter(Protocol):
    """Guess the next tokens; never raise. One process, one thread. All state is a cache."""

    name: str

    def draft(self, contexts: Sequence[Context]) -> list[Draft]:
        """Return at most one draft for each context, with `base` its length."""
        ...

    def update(self, context: Context) -> None: ...

    def remove(self, request_id: str) -> None:
        """Free an ended request's memory."""
        ...

"""The protocol of drafters: contexts in, drafts out, in batches. A drafter may be wrong or silent and never raises."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from app.messages import LEAST_SURVIVAL, Draft
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
    least_survival: float = LEAST_SURVIVAL  # of a guess that a model goes on from
    state: bytes | None = None  # the target's last hidden state where it chose the last token, d float16


def draft_of(
    name: str, context: Context, tokens: Iterable[int], parents: Iterable[int], chances: Iterable[float]
) -> Draft:
    """Make a drafter's draft for a context."""
    return Draft(
        request_id=context.request_id,
        base=len(context.tokens),
        drafter=name,
        tokens=tuple(tokens),
        parents=tuple(parents),
        confidences=tuple(chances),
    )


class Drafter(Protocol):
    """Guess the next tokens. One process, one thread. Caches only: all of its state can be lost."""

    name: str

    def draft(self, contexts: Sequence[Context]) -> list[Draft]:
        """Draft at most once for each context, with `base` its length; not at all where no guess is worth a row."""
        ...

    def update(self, context: Context) -> None:
        """Learn from the tokens committed since the last call for this request. May do nothing."""
        ...

    def remove(self, request_id: str) -> None:
        """Free the memory that only this request needs: it has ended."""
        ...

"""Define what is told of a verifier's rounds: asked drafts, trees, verdicts, commits."""

from collections.abc import Iterable
from collections.abc import Sequence as Listed
from dataclasses import dataclass

import msgspec

from app.messages import Event, FinishReason
from app.state import BatchEntry, Sequence, Verdict


class AskedDraft(msgspec.Struct, frozen=True, gc=False):
    """Describe the draft that a sequence waits for."""

    sequence: Sequence
    drafters: tuple[str, ...]
    has_models: bool


class VerifiedRound(msgspec.Struct, frozen=True, gc=False):
    """Hold a sequence's part of a step: its entry, the target's verdict, and the tokens that it commits."""

    sequence: Sequence
    entry: BatchEntry
    verdict: Verdict
    tokens: list[int]


@dataclass(frozen=True, slots=True)
class VerifiedStep:
    """Hold a step that is done: its entries, and the rounds of those sequences that have a verdict and are held."""

    entries: Listed[BatchEntry]
    rounds: Listed[VerifiedRound]
    rows: int
    took_s: float


class RoundObserver:
    """Observe the rounds of a verifier; a subclass overrides what it needs. No observer changes a token."""

    def on_start(self, sequences: Iterable[Sequence], now_s: float) -> None:
        """Observe the sequences of a step that is about to be launched. `now_s`: wall clock."""

    def on_failure(self) -> None:
        """Observe that a step failed."""

    def on_verdict(self, step: VerifiedStep) -> None:
        """Observe a step's verdicts, before the next drafts are asked for."""

    def on_asked(self, asked: Listed[AskedDraft]) -> None:
        """Observe drafts that are asked for at once."""

    def on_trees(self, trees: int, came_s: float, waited_s: float) -> None:
        """Observe trees that came `came_s` after they were asked for, and were waited for `waited_s`."""

    def on_step(self, step: VerifiedStep, host_s: float) -> None:
        """Observe a step again once its commit is sent. `host_s`: seconds of the round beside the target's."""

    def on_commit(self, sequence: Sequence, event: Event) -> None:
        """Observe an event that the store has."""

    def on_left(self, sequence: Sequence, tokens: int, reason: FinishReason) -> None:
        """Observe that a sequence left this verifier before its end, with so many generated tokens."""

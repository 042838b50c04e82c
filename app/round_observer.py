"""Define the observers of a verifier's rounds."""

from collections.abc import Iterable
from collections.abc import Sequence as Listed
from dataclasses import dataclass

import msgspec

from app.messages import Event, FinishReason
from app.state import BatchEntry, Sequence, Verdict


class AskedDraft(msgspec.Struct, frozen=True, gc=False):
    sequence: Sequence
    drafters: tuple[str, ...]
    has_models: bool


class VerifiedRound(msgspec.Struct, frozen=True, gc=False):
    sequence: Sequence
    entry: BatchEntry
    verdict: Verdict
    tokens: list[int]


@dataclass(frozen=True, slots=True)
class VerifiedStep:
    """A step's entries, and the rounds of those sequences that have a verdict and are held."""

    entries: Listed[BatchEntry]
    rounds: Listed[VerifiedRound]
    rows: int
    took_s: float


class RoundObserver:
    """Observe the rounds of a verifier; a subclass overrides what it needs. No observer changes a token."""

    def on_start(self, sequences: Iterable[Sequence], now_s: float) -> None:
        """Before a launch. `now_s`: wall clock."""

    def on_failure(self) -> None:
        """A step failed."""

    def on_verdict(self, step: VerifiedStep) -> None:
        """Called before the next drafts are requested."""

    def on_asked(self, asked: Listed[AskedDraft]) -> None:
        """Drafts were asked for at once."""

    def on_trees(self, trees: int, came_s: float, waited_s: float) -> None:
        """Trees came `came_s` after they were asked for; sequences waited for `waited_s`."""

    def on_step(self, step: VerifiedStep, host_s: float) -> None:
        """After the commit is sent. `host_s`: seconds of the round beside the target's."""

    def on_commit(self, sequence: Sequence, event: Event) -> None:
        """The store has the event."""

    def on_left(self, sequence: Sequence, tokens: int, reason: FinishReason) -> None:
        """A sequence left this verifier before its end."""

"""Keep the steps that are guessed beyond a sequence's context."""

from collections.abc import Iterable
from math import prod

from app.drafter.draft_kv import DraftKV
from app.drafter.draft_steps import DraftStep, drafts_of
from app.messages import Draft
from app.stages.draft.protocol import Context


class DraftPath:
    """The guesses for one context; they may exceed the length that its job names."""

    def __init__(self, context: Context, drafters: tuple[DraftKV, ...], steps: list[DraftStep]) -> None:
        self.context = context
        self.drafters = drafters  # those that have not failed yet
        self.names = {drafter.name for drafter in drafters}
        self.start = len(context.tokens)
        self.tokens = [*context.tokens, *(step.token for step in steps)]
        self.is_ahead = False  # extended since the last job
        self._steps = steps
        self.least_survival = context.least_survival
        self._limit = context.max_draft_tokens

    @property
    def id(self) -> str:
        return self.context.request_id

    @property
    def room(self) -> int:
        return self._limit - len(self._steps)

    @property
    def is_done(self) -> bool:
        return self.room <= 0 or self._survival < self.least_survival

    @property
    def can_run_ahead(self) -> bool:
        room = min((drafter.max_context for drafter in self.drafters), default=0) - len(self.tokens)
        return room > 0 and len(self._steps) < self._furthest and self._survival >= self.least_survival

    def align(self) -> None:
        for drafter in self.drafters:
            drafter.align(self.context, self.tokens)

    def open_ahead(self) -> None:
        self._limit = self._furthest

    def take(self, steps: Iterable[DraftStep], drafters: tuple[DraftKV, ...]) -> None:
        before = len(self.tokens)
        self.drafters = drafters
        for step in steps:
            if not self.is_done:
                self._steps.append(step)
                self.tokens.append(step.token)
        for drafter in drafters:
            drafter.advance(self.id, self.tokens[before:])

    def after(self, tokens: list[int]) -> list[DraftStep]:
        if len(tokens) < self.start or self.tokens[: len(tokens)] != tokens:
            return []
        return self._steps[len(tokens) - self.start :]

    def drafts(self) -> list[Draft]:
        """Return every drafter's draft, no deeper than the job asks for."""
        steps = self._steps[: self.context.max_draft_tokens]
        return drafts_of(self.id, self.start, steps, has_leaves=self.context.has_leaves)

    @property
    def _survival(self) -> float:
        return prod(step.confidence for step in self._steps)

    @property
    def _furthest(self) -> int:
        return 2 * self.context.max_draft_tokens + 1  # this round's, the target's own token, and as many again

"""Keep the drafted path of a sequence: its context, the steps guessed beyond it, and the drafts they make.

Steps go in; one draft for each drafter comes out. The last path of every sequence is kept: while a
verdict is pending it can be extended, as if all of it were right and its next guess the target's own
token. The next path begins with the part that the verdict and the next job confirm; the rest is
rolled back like any wrong guess. No choice between drafters is made here.
"""

from collections import OrderedDict
from collections.abc import Iterable
from collections.abc import Sequence as Listed
from math import prod
from typing import Protocol

from app.drafter.draft_kv import MAX_SEQUENCES, DraftKV
from app.drafter.draft_steps import DraftStep, drafts_of
from app.messages import Draft
from app.stages.draft.protocol import Context


class DraftPath:
    """The guesses for one context; they may go beyond the length that its job asks for."""

    def __init__(
        self,
        context: Context,
        drafters: tuple[DraftKV, ...],
        steps: list[DraftStep],
    ) -> None:
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
        """Return the id of the path's request."""
        return self.context.request_id

    @property
    def room(self) -> int:
        """Return the number of steps that it may still take."""
        return self._limit - len(self._steps)

    @property
    def is_done(self) -> bool:
        """Return whether it is as long as it may be, or too unlikely to go on."""
        return self.room <= 0 or self._survival < self.least_survival

    @property
    def can_run_ahead(self) -> bool:
        """Return whether the next round could use a further step that the models have room for."""
        room = min((drafter.max_context for drafter in self.drafters), default=0) - len(self.tokens)
        return room > 0 and len(self._steps) < self._furthest and self._survival >= self.least_survival

    def align(self) -> None:
        """Roll its drafters' caches back to the tokens that they share with it."""
        for drafter in self.drafters:
            drafter.align(self.context, self.tokens)

    def open_ahead(self) -> None:
        """Let it grow to the length that the next round can use."""
        self._limit = self._furthest

    def take(self, steps: Iterable[DraftStep], drafters: tuple[DraftKV, ...]) -> None:
        """Append these steps, until it is done; only these drafters, which guessed them, go on."""
        before = len(self.tokens)
        self.drafters = drafters
        for step in steps:
            if not self.is_done:
                self._steps.append(step)
                self.tokens.append(step.token)
        for drafter in drafters:
            drafter.advance(self.id, self.tokens[before:])

    def after(self, tokens: list[int]) -> list[DraftStep]:
        """Return the steps beyond these tokens; none if it does not begin with them."""
        if len(tokens) < self.start or self.tokens[: len(tokens)] != tokens:
            return []
        return self._steps[len(tokens) - self.start :]

    def drafts(self) -> list[Draft]:
        """Return a draft for every drafter that guessed, no deeper than the job asks for."""
        return drafts_of(self.id, self.start, self._steps[: self.context.max_draft_tokens])

    @property
    def _survival(self) -> float:
        return prod(step.confidence for step in self._steps)

    @property
    def _furthest(self) -> int:
        """Count the steps that the next round can use: this one's, the target's own token, and as many again."""
        return 2 * self.context.max_draft_tokens + 1


class DraftSteps(Protocol):
    """Extend aligned paths, by one drafter or by several."""

    def __call__(self, paths: list[DraftPath], depth: int, *, in_spare_time: bool = False) -> None:
        """Let each path take up to `depth` steps; more than one only where each has a single drafter."""
        ...


class DraftPaths:
    """The last path of every sequence; over MAX_SEQUENCES the least recently started are dropped."""

    def __init__(self) -> None:
        self._paths: OrderedDict[str, DraftPath] = OrderedDict()
        self._ahead_hits = self._ahead_misses = self._guessed = 0

    @property
    def guessed(self) -> int:
        """Count the steps that the last call of `draft` took, those guessed ahead left out."""
        return self._guessed

    @property
    def ahead_hits(self) -> int:
        """Count the jobs that used tokens guessed ahead."""
        return self._ahead_hits

    @property
    def ahead_misses(self) -> int:
        """Count the jobs whose tokens guessed ahead the verdict discarded."""
        return self._ahead_misses

    def last(self, request_id: str) -> DraftPath | None:
        """Return the sequence's path of the job before."""
        return self._paths.get(request_id)

    def start(self, context: Context, drafters: Iterable[DraftKV]) -> DraftPath:
        """Begin a path with the steps of the last one that lie beyond the context.

        Drafters whose models it would be too long for take no part.
        """
        length = len(context.tokens) + context.max_draft_tokens
        able = tuple(drafter for drafter in drafters if length <= drafter.max_context)
        last = self._paths.pop(context.request_id, None)
        steps = last.after(context.tokens) if last and last.names == {drafter.name for drafter in able} else []
        if last and last.is_ahead:
            self._ahead_hits += bool(steps)
            self._ahead_misses += not steps
        path = self._paths[context.request_id] = DraftPath(context, able, steps)
        while len(self._paths) > MAX_SEQUENCES:
            self._paths.popitem(last=False)
        return path

    def draft(self, paths: Listed[DraftPath], extend: DraftSteps) -> list[Draft]:
        """Extend started paths until each is done or has no drafter left; return their drafts."""
        active = [path for path in paths if path.drafters and not path.is_done]
        self._guessed = 0
        for path in active:
            path.align()
        while active:
            is_single = all(len(path.drafters) == 1 for path in active)
            lengths = [len(path.tokens) for path in active]
            extend(active, min(path.room for path in active) if is_single else 1)
            self._guessed += max(len(path.tokens) - length for path, length in zip(active, lengths, strict=True))
            active = [path for path in active if path.drafters and not path.is_done]
        return [draft for path in paths for draft in path.drafts()]

    def run_ahead(self, request_ids: Iterable[str], extend: DraftSteps) -> bool:
        """Guess one token more for each of these sequences where the next round can use it.

        Returns False if there was no token to guess.
        """
        paths = [self._paths[request_id] for request_id in request_ids if request_id in self._paths]
        paths = [path for path in paths if path.can_run_ahead]
        for path in paths:
            path.open_ahead()
            path.align()
        extend(paths, 1, in_spare_time=True)
        for path in paths:
            path.is_ahead |= bool(path.drafters)
        return any(path.drafters for path in paths)

    def remove(self, request_id: str) -> None:
        """Drop an ended sequence's path. The drafters release its caches."""
        self._paths.pop(request_id, None)

"""Guess the next token of paths that drafters on several nodes share (CoSine, papers 1.3).

A job begins a path, and the fuser answers each guess with the whole path so far, so that a lost answer is replaced by
the next.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from app.drafter.draft_kv import MAX_SEQUENCES, DraftKV
from app.messages import SharedPath, TokenGuess
from app.stages.draft.protocol import Context
from app.state import Guess


@dataclass(slots=True)
class _Path:
    context: Context
    drafters: tuple[DraftKV, ...]
    base: int
    tokens: tuple[int, ...] = ()  # chosen by the fuser
    survival: float = 1.0
    guessed: int = 0  # steps that this node has guessed, or was too late for

    @property
    def is_waiting(self) -> bool:
        is_next = self.guessed <= len(self.tokens) < self.context.max_draft_tokens
        return is_next and self.survival >= self.context.least_survival


class SharedPaths:
    """The shared path of every sequence; over MAX_SEQUENCES the oldest are dropped."""

    def __init__(self, drafters: Iterable[DraftKV]) -> None:
        self._drafters = tuple(drafters)
        self._paths: OrderedDict[str, _Path] = OrderedDict()
        self._guesses = 0

    @property
    def guesses(self) -> int:
        return self._guesses

    def start(self, context: Context, names: Collection[str]) -> None:
        length = len(context.tokens) + context.max_draft_tokens
        able = tuple(each for each in self._drafters if each.name in names and length <= each.max_context)
        self._paths.pop(context.request_id, None)
        self._paths[context.request_id] = _Path(context, able, len(context.tokens))
        if len(self._paths) > MAX_SEQUENCES:
            self._paths.popitem(last=False)

    def receive(self, message: SharedPath) -> None:
        path = self._paths.get(message.request_id)
        if path and path.base == message.base and len(message.tokens) > len(path.tokens):
            path.tokens, path.survival = message.tokens, message.survival

    def guess(self) -> list[TokenGuess]:
        waiting = [path for path in self._paths.values() if path.is_waiting]
        found = [guess for drafter in self._drafters for guess in _guesses(drafter, waiting)]
        for path in waiting:
            path.guessed = len(path.tokens) + 1
        self._guesses += len(found)
        return found

    def remove(self, request_id: str) -> None:
        """Caches stay: the drafters release them."""
        self._paths.pop(request_id, None)


def _guesses(drafter: DraftKV, waiting: Iterable[_Path]) -> list[TokenGuess]:
    own = {path.context.request_id: path for path in waiting if drafter in path.drafters}
    for path in own.values():
        drafter.align(path.context, [*path.context.tokens[: path.base], *path.tokens])
    found = drafter.guess([*own], 1, 0.0)
    return [_message(own[request_id], drafter.name, guesses[0]) for request_id, guesses in found.items() if guesses]


def _message(path: _Path, drafter: str, guess: Guess) -> TokenGuess:
    return TokenGuess(
        request_id=path.context.request_id,
        base=path.base,
        step=len(path.tokens),
        drafter=drafter,
        token=guess.token,
        confidence=min(1.0, guess.confidence),
        second=guess.second,
        second_confidence=min(1.0, guess.second_confidence),
    )

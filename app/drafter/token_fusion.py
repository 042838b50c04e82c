"""Draft with the drafters of one node, which share each token (CoSine, papers 1.3).

At every step each drafter guesses one token, and all go on from the most confident; the other guesses, and likely
second-best ones, are leaves. A lone drafter is a group of one, which guesses several tokens a call. While a verdict is
pending a path can be extended; the next one begins with the part that its job confirms.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable
from collections.abc import Sequence as Listed
from typing import Final

from app.drafter.draft_kv import MAX_SEQUENCES, DraftKV
from app.drafter.draft_path import DraftPath
from app.drafter.draft_steps import DraftStep, fused_step, own_steps
from app.messages import Draft
from app.stages.draft.protocol import Context
from app.state import Guess

Ask = tuple[Context, Collection[str]]  # a sequence, and the drafters that its job names


class TokenFusion:
    """A group of drafters, and the last path of every sequence; over MAX_SEQUENCES the oldest are dropped."""

    def __init__(self, drafters: Iterable[DraftKV]) -> None:
        self._drafters = tuple(drafters)
        self.names: Final = frozenset(drafter.name for drafter in self._drafters)
        self._paths: OrderedDict[str, DraftPath] = OrderedDict()
        self.ahead_hits = self.ahead_misses = 0  # jobs that used tokens guessed ahead, and that discarded them
        self.guessed = 0  # steps that the last call of `draft` took: those guessed ahead are left out

    def draft(self, asks: Listed[Ask]) -> list[Draft]:
        paths = [self._start(context, names) for context, names in asks]
        active = [path for path in paths if path.drafters and not path.is_done]
        self.guessed = 0
        for path in active:
            path.align()
        while active:
            is_single = all(len(path.drafters) == 1 for path in active)
            lengths = [len(path.tokens) for path in active]
            self._extend(active, min(path.room for path in active) if is_single else 1)
            self.guessed += max(len(path.tokens) - length for path, length in zip(active, lengths, strict=True))
            active = [path for path in active if path.drafters and not path.is_done]
        return [draft for path in paths for draft in path.drafts()]

    def run_ahead(self, request_ids: Iterable[str]) -> bool:
        """Guess one more token for each sequence where the next round can use it; tell whether there was any."""
        paths = [self._paths[request_id] for request_id in request_ids if request_id in self._paths]
        paths = [path for path in paths if path.can_run_ahead]
        for path in paths:
            path.open_ahead()
            path.align()
        self._extend(paths, 1, in_spare_time=True)
        for path in paths:
            path.is_ahead |= bool(path.drafters)
        return any(path.drafters for path in paths)

    @property
    def ahead(self) -> tuple[int, int]:
        return self.ahead_hits, self.ahead_misses

    def remove(self, request_id: str) -> None:
        """Caches stay: the drafters release them."""
        self._paths.pop(request_id, None)

    def _start(self, context: Context, names: Collection[str]) -> DraftPath:
        length = len(context.tokens) + context.max_draft_tokens
        able = tuple(each for each in self._drafters if each.name in names and length <= each.max_context)
        last = self._paths.pop(context.request_id, None)
        steps = last.after(context.tokens) if last and last.names == {drafter.name for drafter in able} else []
        if last and last.is_ahead:
            self.ahead_hits += bool(steps)
            self.ahead_misses += not steps
        path = self._paths[context.request_id] = DraftPath(context, able, steps)
        while len(self._paths) > MAX_SEQUENCES:
            self._paths.popitem(last=False)
        return path

    def _extend(self, paths: list[DraftPath], depth: int, *, in_spare_time: bool = False) -> None:
        guesses: dict[str, dict[DraftKV, list[Guess]]] = {path.id: {} for path in paths}
        least = min((path.least_survival for path in paths), default=0.0)
        for drafter in self._drafters:
            request_ids = [path.id for path in paths if drafter in path.drafters]
            for request_id, found in drafter.guess(request_ids, depth, least, in_spare_time=in_spare_time).items():
                guesses[request_id][drafter] = found
        for path in paths:
            path.take(_steps(guesses[path.id]), tuple(guesses[path.id]))


def _steps(guesses: dict[DraftKV, list[Guess]]) -> list[DraftStep]:
    if len(guesses) == 1:
        ((drafter, own),) = guesses.items()
        return own_steps(drafter.name, own)
    first = {drafter.name: found[0] for drafter, found in guesses.items()}
    return [fused_step(first)] if first else []

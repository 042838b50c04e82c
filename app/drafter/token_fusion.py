"""Draft with the drafters of one node, which share each token (CoSine, papers 1.3).

At every step each drafter guesses one token, and all go on from the most confident; the other guesses, and likely
second-best ones, are leaves. A lone drafter is a group of one, which guesses several tokens a call. While a verdict is
pending a path can be extended; the next one begins with the part that its job confirms.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from app.drafter.draft_kv import MAX_SEQUENCES, DraftKV
from app.drafter.draft_path import DraftPath
from app.drafter.draft_steps import DraftPart, DraftStep, fused_step, own_steps
from app.stages.draft.protocol import Context
from app.state import Guess

Ask = tuple[Context, Collection[str]]  # a sequence, and the drafters that its job names


@dataclass(slots=True, eq=False)
class PathPart(DraftPart):
    paths: list[DraftPath] = field(default_factory=list)

    def active(self) -> list[DraftPath]:
        return [path for path in self.paths if path.drafters and not path.is_done]


class TokenFusion:
    """A group of drafters, and the last path of every sequence; over MAX_SEQUENCES the oldest are dropped."""

    def __init__(self, drafters: Iterable[DraftKV]) -> None:
        self._drafters = tuple(drafters)
        self.names: Final = frozenset(drafter.name for drafter in self._drafters)
        self._paths: OrderedDict[str, DraftPath] = OrderedDict()
        self._batches: list[PathPart] = []  # that are not done
        self.ahead_hits = self.ahead_misses = 0  # jobs that used tokens guessed ahead, and that discarded them

    def begin(self, asks: Iterable[Ask]) -> DraftPart:
        batch = PathPart(paths=[self._start(context, names) for context, names in asks])
        for path in batch.active():
            path.align()
        self._batches.append(batch)
        return batch

    def go_on(self, _: Collection[str] = ()) -> None:
        """End the batches whose paths are done, or else guess for all, and end those that are done then."""
        if self._end_done():
            return  # what is done waits for no guess
        active = [path for batch in self._batches for path in batch.active()]
        lengths = {id(path): len(path.tokens) for path in active}
        is_single = all(len(path.drafters) == 1 for path in active)
        self._extend(active, min(path.room for path in active) if is_single else 1)
        for batch in self._batches:
            batch.levels += max(len(path.tokens) - lengths.get(id(path), len(path.tokens)) for path in batch.paths)
        self._end_done()

    def stop(self) -> None:
        """End all batches without drafts."""
        for batch in self._batches:
            batch.is_done = True
        self._batches = []

    @property
    def level_s(self) -> float:
        """Return the seconds of one more guess of a lone drafter; 0 before any, or for several."""
        return self._drafters[0].usual_level_s if len(self._drafters) == 1 else 0.0

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
        self._take(request_id)

    def _start(self, context: Context, names: Collection[str]) -> DraftPath:
        length = len(context.tokens) + context.max_draft_tokens
        able = tuple(each for each in self._drafters if each.name in names and length <= each.max_context)
        last = self._take(context.request_id)
        steps = last.after(context.tokens) if last and last.names == {drafter.name for drafter in able} else []
        if last and last.is_ahead:
            self.ahead_hits += bool(steps)
            self.ahead_misses += not steps
        path = self._paths[context.request_id] = DraftPath(context, able, steps)
        while len(self._paths) > MAX_SEQUENCES:
            self._paths.popitem(last=False)
        return path

    def _take(self, request_id: str) -> DraftPath | None:
        """Remove and return a path, which no batch waits for any more."""
        path = self._paths.pop(request_id, None)
        for batch in self._batches:
            batch.paths = [own for own in batch.paths if own is not path]
        return path

    def _end_done(self) -> bool:
        """End the batches without an active path; tell whether there are any, or no batch is left."""
        ended = [batch for batch in self._batches if not batch.active()]
        for batch in ended:
            batch.drafts = [draft for path in batch.paths for draft in path.drafts()]
            batch.is_done = True
        self._batches = [batch for batch in self._batches if not batch.is_done]
        return bool(ended) or not self._batches

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

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
        self._parts: list[PathPart] = []  # that are not done
        self.ahead_hits = self.ahead_misses = 0  # jobs that used tokens guessed ahead, and that discarded them

    def begin(self, asks: Iterable[Ask]) -> DraftPart:
        """Begin the paths of a batch; it is done where each was guessed ahead."""
        part = PathPart(paths=[self._start(context, names) for context, names in asks])
        for path in part.active():
            path.align()
        self._parts.append(part)
        self._end_done()
        return part

    @property
    def level_s(self) -> float:
        """Return the seconds of one more guess of all drafters; 0 before any of one."""
        seconds = [drafter.usual_level_s for drafter in self._drafters]
        return sum(seconds) if all(seconds) else 0.0

    def go_on(self, _: Collection[str] = ()) -> None:
        """Guess for all parts, and end those that need no more."""
        active = [path for part in self._parts if not part.is_done for path in part.active()]
        if active:
            lengths = {id(path): len(path.tokens) for path in active}
            is_single = all(len(path.drafters) == 1 for path in active)
            self._extend(active, min(path.room for path in active) if is_single else 1)
            for part in self._parts:
                grown = (len(path.tokens) - lengths.get(id(path), len(path.tokens)) for path in part.paths)
                part.levels += max(grown, default=0)
        self._end_done()

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
        """Remove and return a path, which no part waits for any more."""
        path = self._paths.pop(request_id, None)
        for part in self._parts:
            part.paths = [own for own in part.paths if own is not path]
        return path

    def _end_done(self) -> None:
        """End the parts without an active path."""
        for part in self._parts:
            if not part.is_done and not part.active():
                part.drafts, part.is_done = [draft for path in part.paths for draft in path.drafts()], True
        self._parts = [part for part in self._parts if not part.is_done]

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

"""Fuse the drafters of one node token by token (CoSine, papers 1.3): they guess a path together.

At every step each drafter that the job names guesses one token, and all go on from the one with the
highest confidence; the other drafters read that token instead of their own. Their own
guesses stand beside the path as leaves, and so does every second-best guess that is likely enough to
be worth a row. One draft for each drafter comes out, with its own guesses and, marked as borrowed,
the others' guesses above them, so that the fuser knows which drafter proposed each node.
"""

from collections.abc import Collection, Iterable
from collections.abc import Sequence as Listed
from typing import Final

from app.drafter.draft_kv import DraftKV
from app.drafter.draft_path import DraftPath, DraftPaths
from app.drafter.draft_steps import DraftStep, fused_step, own_steps
from app.messages import Draft
from app.stages.draft.protocol import Context
from app.state import Guess

Ask = tuple[Context, Collection[str]]  # a sequence, and the drafters that its job names


class TokenFusion:
    """Draft with several drafters that share each token. Keeps every sequence's path, as `DraftChain` does."""

    def __init__(self, drafters: Iterable[DraftKV]) -> None:
        self._drafters = tuple(drafters)
        self.names: Final = frozenset(drafter.name for drafter in self._drafters)
        self.paths: Final = DraftPaths()

    def draft(self, asks: Listed[Ask]) -> list[Draft]:
        """Return a draft for every context and drafter with a guess.

        A drafter whose model or cache a context is too long for has none.
        """
        paths = [self._start(context, names) for context, names in asks]
        return self.paths.draft(paths, self._extend)

    def run_ahead(self, request_ids: Iterable[str]) -> bool:
        """Guess one token more for each of these sequences; return False if there was none to guess."""
        return self.paths.run_ahead(request_ids, self._extend)

    def remove(self, request_id: str) -> None:
        """Drop an ended sequence. The drafters release its caches."""
        self.paths.remove(request_id)

    def _start(self, context: Context, names: Collection[str]) -> DraftPath:
        return self.paths.start(context, [drafter for drafter in self._drafters if drafter.name in names])

    def _extend(self, paths: list[DraftPath], depth: int, *, in_spare_time: bool = False) -> None:
        """Extend paths by up to `depth` tokens, more than one only for single drafters."""
        guesses: dict[str, dict[DraftKV, list[Guess]]] = {path.id: {} for path in paths}
        least = min((path.least_survival for path in paths), default=0.0)
        for drafter in self._drafters:
            request_ids = [path.id for path in paths if drafter in path.drafters]
            for request_id, found in drafter.guess(request_ids, depth, least, in_spare_time=in_spare_time).items():
                guesses[request_id][drafter] = found
        for path in paths:
            path.take(self._steps(guesses[path.id]), tuple(guesses[path.id]))

    def _steps(self, guesses: dict[DraftKV, list[Guess]]) -> list[DraftStep]:
        """Return one drafter's own steps, or the one step that several share."""
        if len(guesses) == 1:
            ((drafter, own),) = guesses.items()
            return own_steps(drafter.name, own)
        first = {drafter.name: found[0] for drafter, found in guesses.items()}
        return [fused_step(first)] if first else []

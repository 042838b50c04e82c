"""Draft chains with one drafter: several steps a call, running ahead, and rolling back.

Contexts go in; a draft for each comes out: a chain, with likely second-best guesses as leaves.
Knows no other drafters.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Listed
from typing import Final

from app.drafter.draft_kv import DraftKV
from app.drafter.draft_path import DraftPath, DraftPaths, own_steps
from app.messages import Draft
from app.stages.draft.protocol import Context


class DraftChain:
    """Draft chains with one drafter. Keeps every sequence's path, to go on from where a verdict confirms it."""

    def __init__(self, drafter: DraftKV) -> None:
        self.paths: Final = DraftPaths()
        self._drafter = drafter

    def draft(self, contexts: Listed[Context]) -> list[Draft]:
        """Return one draft for each context, none for one too long for the model or its cache."""
        paths = [self.paths.start(context, [self._drafter]) for context in contexts]
        active = [path for path in paths if path.drafters and not path.is_done]
        for path in active:
            path.align()
        while active:
            depth = min(path.room for path in active)
            active = [path for path in self._step(active, depth) if not path.is_done]
        return [draft for path in paths for draft in path.drafts()]

    def run_ahead(self, request_ids: Iterable[str]) -> bool:
        """Guess one token more for each of these sequences where the next round can use it.

        Returns False if there was no token to guess.
        """
        advanced = self._step(self.paths.open_ahead(request_ids), 1, in_spare_time=True)
        for path in advanced:
            path.is_ahead = True
        return bool(advanced)

    def remove(self, request_id: str) -> None:
        """Drop an ended sequence and release its cache."""
        self.paths.remove(request_id)
        self._drafter.remove(request_id)

    def _step(self, paths: list[DraftPath], depth: int, *, in_spare_time: bool = False) -> list[DraftPath]:
        """Guess up to `depth` tokens for aligned paths; return those that grew."""
        found = self._drafter.guess([path.id for path in paths], depth, in_spare_time=in_spare_time)
        for path in paths:
            guesses = found.get(path.id, [])
            path.take(own_steps(self._drafter.name, guesses), (self._drafter,) if path.id in found else ())
        return [path for path in paths if path.drafters]

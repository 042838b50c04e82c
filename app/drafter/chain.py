"""Draft chains with one drafter: several steps a call, running ahead, and rolling back.

Contexts go in; a draft for each comes out: a chain, with likely second-best guesses as leaves.
Knows no other drafters.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Listed
from typing import Final

from app.drafter.draft_kv import DraftKV
from app.drafter.draft_path import DraftPath, DraftPaths
from app.drafter.draft_steps import own_steps
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
        return self.paths.draft(paths, self._extend)

    def run_ahead(self, request_ids: Iterable[str]) -> bool:
        """Guess one token more for each of these sequences; return False if there was none to guess."""
        return self.paths.run_ahead(request_ids, self._extend)

    def remove(self, request_id: str) -> None:
        """Drop an ended sequence and release its cache."""
        self.paths.remove(request_id)
        self._drafter.remove(request_id)

    def _extend(self, paths: list[DraftPath], depth: int, *, in_spare_time: bool = False) -> None:
        """Guess up to `depth` tokens for aligned paths."""
        least = min((path.least_survival for path in paths), default=0.0)
        found = self._drafter.guess([path.id for path in paths], depth, least, in_spare_time=in_spare_time)
        for path in paths:
            guesses = found.get(path.id, [])
            path.take(own_steps(self._drafter.name, guesses), (self._drafter,) if path.id in found else ())

"""Draft with a small causal LM: trees, or chains with second-best tokens as leaves, batched over sequences."""

from collections.abc import Collection
from collections.abc import Sequence as Listed
from typing import Final, TypeAlias

from app.clock import SYSTEM, Clock
from app.drafter.draft_kv import DraftKV, Guesser
from app.drafter.draft_steps import DraftPart
from app.drafter.token_fusion import TokenFusion
from app.drafter.tree_drafting import TreeDrafting
from app.messages import Draft
from app.stages.draft.protocol import Context

Drafting: TypeAlias = TreeDrafting | TokenFusion


class ModelDrafter:
    """A model drafter. Its `draft_kv` may take part in a larger group."""

    def __init__(
        self,
        name: str,
        guesser: Guesser,
        max_context: int,
        reads_state: bool = False,
        clock: Clock = SYSTEM,
        weights: str = "stored",
    ) -> None:
        self.name = name
        self.weights: Final = weights  # their form, for status
        self.reads_state: Final = reads_state  # the target's hidden state, which jobs then carry
        self.draft_kv: Final = DraftKV(name, guesser, max_context, clock)
        self.chain: Final = TokenFusion([self.draft_kv])
        self.trees: Final = TreeDrafting(self.draft_kv, clock)

    def begin(self, contexts: Listed[Context]) -> list[tuple[Drafting, DraftPart]]:
        """Begin chains and trees; return what goes on with each."""
        chained = [context for context in contexts if not context.max_nodes and not context.is_reading]
        grown = [context for context in contexts if context.max_nodes or context.is_reading]
        for own, others in ((self.chain, grown), (self.trees, chained)):
            for context in others:
                own.remove(context.request_id)
        parts: list[tuple[Drafting, DraftPart]] = []
        if chained:
            parts.append((self.chain, self.chain.begin((context, (self.name,)) for context in chained)))
        if grown:
            parts.append((self.trees, self.trees.begin(grown)))
        return parts

    def draft(self, contexts: Listed[Context]) -> list[Draft]:
        parts = self.begin(contexts)
        for drafting, part in parts:
            while not part.is_done:
                drafting.go_on()
        return [draft for _, part in parts for draft in part.drafts]

    @property
    def ahead(self) -> tuple[int, int]:
        """Return the jobs that used what was guessed ahead, and those that could not."""
        return self.trees.ahead_hits + self.chain.ahead_hits, self.trees.ahead_misses + self.chain.ahead_misses

    def read_ahead(self, request_ids: Collection[str]) -> bool:
        return self.trees.read_ahead(request_ids)

    def run_ahead(self, request_ids: Collection[str]) -> bool:
        return self.trees.run_ahead(request_ids) or self.chain.run_ahead(request_ids)

    def update(self, context: Context) -> None:
        """Learn nothing."""

    def remove(self, request_id: str) -> None:
        self.chain.remove(request_id)
        self.trees.remove(request_id)
        self.draft_kv.remove(request_id)

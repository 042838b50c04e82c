"""Draft with a small causal LM: trees, or chains with second-best tokens as leaves, batched over sequences."""

from collections.abc import Sequence as Listed
from typing import Final

from app.clock import SYSTEM, Clock
from app.drafter.draft_kv import DraftKV, Guesser
from app.drafter.token_fusion import TokenFusion
from app.messages import Draft
from app.stages.draft.protocol import Context


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

    def draft(self, contexts: Listed[Context]) -> list[Draft]:
        return self.chain.draft([(context, (self.name,)) for context in contexts])

    def update(self, context: Context) -> None:
        """Learn nothing."""

    def remove(self, request_id: str) -> None:
        self.chain.remove(request_id)
        self.draft_kv.remove(request_id)

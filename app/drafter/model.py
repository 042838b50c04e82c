"""The `model` drafter: a small causal LM with its own KV cache, batched over sequences, all of them in step.

Under the top guess of each step the second best hangs as a leaf, if it is likely enough to be worth a row.
"""

from collections.abc import Sequence as Listed
from typing import Final

from app.drafter.chain import DraftChain
from app.drafter.draft_kv import DraftKV, Guesser
from app.messages import Draft
from app.stages.draft.protocol import Context


class ModelDrafter:
    """Drafter around a model: chains with second-best leaves. Its `draft_kv` may take part in a `TokenFusion`."""

    def __init__(self, name: str, guesser: Guesser, max_context: int, reads_state: bool = False) -> None:
        self.name = name
        self.reads_state: Final = reads_state  # of the target, sent along with jobs
        self.draft_kv: Final = DraftKV(name, guesser, max_context)
        self.chain: Final = DraftChain(self.draft_kv)

    def draft(self, contexts: Listed[Context]) -> list[Draft]:
        """One draft a context; none for a context too long for the model or its cache."""
        return self.chain.draft(contexts)

    def update(self, context: Context) -> None:
        """Learn nothing: the weights stand."""

    def remove(self, request_id: str) -> None:
        """Give the sequence's cache back."""
        self.chain.remove(request_id)

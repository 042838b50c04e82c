"""The `model` drafter: a small causal LM with its own KV cache, batched over sequences, all of them in step.

Under the top guess of each step the second best hangs as a leaf, if it is likely enough to be worth a row.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Listed

from app.drafter.draft_kv import DraftKV, Guesser
from app.drafter.token_fusion import TokenFusion
from app.messages import Draft
from app.stages.draft.protocol import Context


class ModelDrafter:
    """Drafts chains with second-best leaves. It is a cooperation of one."""

    def __init__(self, name: str, guesser: Guesser, max_context: int, reads_state: bool = False) -> None:
        self.name = name
        self.reads_state = reads_state  # of the target, sent along with jobs
        self.reader = DraftKV(name, guesser, max_context)
        self._alone = TokenFusion([self.reader])

    @property
    def ahead_hits(self) -> int:
        """Jobs for which guesses made ahead were of use."""
        return self._alone.ahead_hits

    @property
    def ahead_misses(self) -> int:
        """Jobs for which guesses had been made ahead, and were not."""
        return self._alone.ahead_misses

    def draft(self, contexts: Listed[Context]) -> list[Draft]:
        """One draft a context; none for a context too long for the model or its cache."""
        return self._alone.draft([(context, (self.name,)) for context in contexts])

    def run_ahead(self, request_ids: Iterable[str]) -> bool:
        """One more guess for each of these sequences that it may serve; False if there was none to be made."""
        return self._alone.run_ahead(request_ids)

    def update(self, context: Context) -> None:
        """Nothing to learn: the weights stand."""

    def remove(self, request_id: str) -> None:
        """Give the sequence's cache back."""
        self._alone.remove(request_id)
        self.reader.remove(request_id)

"""Measure a verifier's work, for its heartbeat and its load."""

from collections.abc import Mapping
from collections.abc import Sequence as Listed
from typing import Final

from app.load import VerifierLoad
from app.messages import DrafterStats, FinishReason, Record
from app.round_observer import AskedDraft, RoundObserver, VerifiedStep
from app.state import Sequence
from app.verifier.measured_target import MeasuredTarget
from app.verifier.metrics import VerifierMetrics

DECAY = 0.9  # of the past with each round


class VerifierStats(RoundObserver):
    """Decaying means and counters of one verifier; one thread records, another may read."""

    def __init__(self, measured: MeasuredTarget, asked_rounds: Mapping[str, int], metrics: VerifierMetrics) -> None:
        self.metrics: Final = metrics
        self._measured = measured
        self._asked_rounds = asked_rounds
        self._prompt_tokens = self._reused_tokens = 0
        self._waits = self._waited_s = 0.0
        self._rounds = self._tokens = 0.0
        self._by_drafter: dict[str, tuple[int, int]] = {}  # tokens drafted, and right
        self._later_rounds = self._model_rounds = 0
        self._asked_models: set[str] = set()  # requests whose present round has a model drafter

    @property
    def prompt_tokens(self) -> int:
        return self._prompt_tokens

    @property
    def reused_tokens(self) -> int:
        """Count adopted tokens that other sequences had computed."""
        return self._reused_tokens

    @property
    def later_rounds(self) -> int:
        """Count the rounds after sequences' first tokens, for which drafts could be asked."""
        return self._later_rounds

    @property
    def model_rounds(self) -> int:
        """Count those for which a model drafter was asked."""
        return self._model_rounds

    def record_adopted(self, record: Record, tokens: int, *, is_new: bool) -> None:
        """`is_new`: nothing was committed."""
        self._prompt_tokens += tokens
        self.metrics.record_adopted(record, is_new=is_new)

    def record_reused(self, tokens: int) -> None:
        self._reused_tokens += tokens
        self.metrics.record_reused(tokens)

    def on_asked(self, asked: Listed[AskedDraft]) -> None:
        self._asked_models.update(draft.sequence.record.id for draft in asked if draft.has_models)

    def on_trees(self, trees: int, came_s: float, waited_s: float) -> None:
        waits, total_s = self._waits, self._waited_s
        for _ in range(trees):
            waits, total_s = waits * DECAY + 1.0, total_s * DECAY + came_s
        self._waits, self._waited_s = waits, total_s

    def on_verdict(self, step: VerifiedStep) -> None:
        by_drafter, rounds, tokens = self._by_drafter, self._rounds, self._tokens
        for one in step.rounds:
            tree, path, request_id = one.entry.tree, one.verdict.path, one.sequence.record.id
            if one.sequence.generated:
                self._later_rounds += 1
                self._model_rounds += request_id in self._asked_models
            self._asked_models.discard(request_id)
            if not tree.tokens:
                continue
            rounds = rounds * DECAY + 1.0
            tokens = tokens * DECAY + len(path) + 1
            for name, (drafted, right) in tree.by_proposer(path).items():
                old_drafted, old_right = by_drafter.get(name, (0, 0))
                by_drafter[name] = old_drafted + drafted, old_right + right
        self._rounds, self._tokens = rounds, tokens

    def on_left(self, sequence: Sequence, tokens: int, reason: FinishReason) -> None:
        self._asked_models.discard(sequence.record.id)

    def report(self, sequences: Listed[Sequence]) -> dict[str, object]:
        target, early_exit = self._measured.target, self._measured.early_exit
        return {
            "sequences": len(sequences),
            "cache_tokens": target.capacity_tokens,
            "cache_tokens_free": target.free_tokens,
            "prompt_tokens": self._prompt_tokens,
            "prompt_tokens_reused": self._reused_tokens,
            "nodes_looked_at": early_exit.looked_at,
            "nodes_pruned": early_exit.dropped,
            "nodes_pruned_wrongly": early_exit.cut,
            "asked_rounds": dict(self._asked_rounds),
            "later_rounds": self._later_rounds,
            "model_rounds": self._model_rounds,
            "load": self.load(sequences).model_dump(mode="json"),
        }

    def load(self, sequences: Listed[Sequence]) -> VerifierLoad:
        costs = self._measured.costs
        running = [s for s in sequences if s.generated > 0]
        contexts = sorted((s.cached for s in running), reverse=True)
        reading = costs.reading
        return VerifierLoad(
            sequences=len(sequences),
            prompt_tokens=sum(max(0, s.uncached) for s in sequences if s.generated == 0),
            contexts=tuple(contexts),
            step_s=costs.seconds(len(running)) + reading.step_s((context, 1) for context in contexts)
            if running
            else 0.0,
            draft_wait_s=self._waited_s / self._waits if self._waits else 0.0,
            accepted_length=self._tokens / self._rounds if self._rounds else 0.0,
            by_drafter={
                name: DrafterStats(drafted=drafted, accepted=right)
                for name, (drafted, right) in dict(self._by_drafter).items()
            },
        )

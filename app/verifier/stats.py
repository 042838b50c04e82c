"""What a verifier measures of its own work for the scheduler: how long drafts take, and what comes of them."""

from collections.abc import Iterable

from app.estimates.step_costs import StepCosts
from app.messages import DrafterStats
from app.stages.steer.load import VerifierLoad
from app.state import Sequence, Tree

DECAY = 0.9  # of the past with each round


class VerifierStats:
    """Decaying means and counters of one verifier. Read by another thread than the one that tells it."""

    def __init__(self) -> None:
        self._waits = self._waited_s = 0.0
        self._rounds = self._tokens = 0.0
        self._by_drafter: dict[str, DrafterStats] = {}

    def record_wait(self, seconds: float) -> None:
        """Drafts came so long after they were asked for, in time or not."""
        self._waits = self._waits * DECAY + 1.0
        self._waited_s = self._waited_s * DECAY + seconds

    def record_verified(self, tree: Tree, path: list[int]) -> None:
        """Of a tree, as it was verified, these nodes were right."""
        if not len(tree):
            return
        self._rounds = self._rounds * DECAY + 1.0
        self._tokens = self._tokens * DECAY + len(path) + 1
        right = set(path)
        for node, proposers in enumerate(tree.proposers, start=1):
            for name in proposers:
                old = self._by_drafter.get(name, DrafterStats())
                new = DrafterStats(drafted=old.drafted + 1, accepted=old.accepted + (node in right))
                self._by_drafter[name] = new

    def load(self, sequences: Iterable[Sequence], costs: StepCosts) -> VerifierLoad:
        """With the sequences that run now."""
        everybody = list(sequences)
        running = [s for s in everybody if s.generated > 0]
        contexts = sorted((s.cached for s in running), reverse=True)
        reading = costs.reading
        return VerifierLoad(
            sequences=len(everybody),
            prompt_tokens=sum(max(0, s.uncached) for s in everybody if s.generated == 0),
            contexts=tuple(contexts),
            step_s=costs.seconds(len(running)) + reading.seconds(sum(contexts), 1) if running else 0.0,
            context_token_s=reading.seconds(1, 1),
            draft_wait_s=self._waited_s / self._waits if self._waits else 0.0,
            accepted_length=self._tokens / self._rounds if self._rounds else 0.0,
            by_drafter=dict(self._by_drafter),
        )

"""Run the fuser's segment, in the fuser's worker or in a drafter node that drafts alone: drafts in, trees out."""

from collections.abc import Iterable

from app.drafter.replicas import Fetch, Own, Replicas, none_here
from app.fuser.rounds import FuseRound, FuseRounds
from app.fuser.token_sharing import TokenSharing
from app.messages import Draft, DraftJob, SharedPath, TokenGuess, TreeMessage
from app.stages.draft.protocol import Drafter
from app.stages.draft.registry import MODEL_FREE
from app.stages.fuse import fuse, warm_up


class Fuser:
    def __init__(
        self,
        model_free: Iterable[Drafter],
        vocab_size: int,
        fetch: Fetch,
        own: Own = none_here,
    ) -> None:
        self._replicas = Replicas(model_free, fetch, own=own)
        self._rounds = FuseRounds({*MODEL_FREE, *(drafter.name for drafter in self._replicas.drafters)})
        self._sharing = TokenSharing(vocab_size)
        self._vocab_size = vocab_size
        warm_up()

    def expect(self, jobs: Iterable[DraftJob], now_s: float = 0.0) -> None:
        """Open rounds for jobs, each in place of its sequence's last one."""
        for job in jobs:
            context = self._replicas.update(job)
            if context or job.is_last:  # a stale one closes no round
                self._rounds.remove(job.request_id)
                self._sharing.remove(job.request_id)
            if job.is_last:
                self._replicas.remove(job.request_id)
            elif context:
                self._rounds.open(job, context)
                if job.sharing:
                    self._sharing.open(job, self._rounds.models(job), now_s)

    def receive(self, drafts: Iterable[Draft]) -> None:
        for draft in drafts:
            self._rounds.add(draft)

    def share(self, guesses: Iterable[TokenGuess], now_s: float) -> list[tuple[str, SharedPath]]:
        """Gather guesses; return (node's mailbox, path) for each node that is to guess on."""
        self._sharing.receive(guesses, now_s)
        return self._sharing.advance(now_s)

    def collect(self, now_s: float) -> list[tuple[str, TreeMessage]]:
        """Close every round that is complete or due; return (verifier's mailbox, tree) of each."""
        return self._close(self._rounds.close_ready(now_s, self._sharing.is_done))

    def finish(self, jobs: Iterable[DraftJob]) -> list[tuple[str, TreeMessage]]:
        """Close the rounds of these jobs as they are."""
        return self._close(self._rounds.close(jobs))

    def _close(self, rounds: list[FuseRound]) -> list[tuple[str, TreeMessage]]:
        for r in rounds:
            if r.job.sharing:
                r.drafts.update({draft.drafter: draft for draft in self._sharing.close(r.job)})
        self._draft_model_free(rounds)
        self._fuse(rounds)
        return [(r.job.verifier, r.message()) for r in rounds]

    def wait_s(self, now_s: float) -> float | None:
        """Return the seconds until a round or a step of its path is due; None when none is open."""
        waits = (self._rounds.wait_s(now_s), self._sharing.wait_s(now_s))
        return min((wait for wait in waits if wait is not None), default=None)

    def _draft_model_free(self, rounds: list[FuseRound]) -> None:
        new = {r.job.request_id: r for r in rounds}
        for drafter in self._replicas.drafters:
            for draft in drafter.draft([r.context for r in new.values() if drafter.name in r.job.drafters]):
                if draft.request_id in new:
                    new[draft.request_id].drafts[draft.drafter] = draft

    def _fuse(self, rounds: list[FuseRound]) -> None:
        stale = [r for r in rounds if r.num_fused != len(r.drafts)]
        trees = fuse([(r.job, [*r.drafts.values()]) for r in stale], self._vocab_size)
        for r, tree in zip(stale, trees, strict=True):
            r.tree, r.num_fused = tree, len(r.drafts)

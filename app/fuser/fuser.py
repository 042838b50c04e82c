"""The fusion's segment: drafts in, one tree a sequence out. In the fusion task, and in a drafter node for its own."""

from collections.abc import Iterable

from app.drafter.replicas import Fetch, Replicas
from app.estimates.calibration import Calibration
from app.fuser.rounds import FuseRound, FuseRounds, message
from app.messages import Draft, DraftJob, TreeMessage
from app.stages.draft.protocol import Drafter
from app.stages.draft.registry import TABLES
from app.stages.fuse import fuse
from app.state import Tree


class Fuser:
    """Gathers a round's drafts, adds the resident drafters' own, makes the tree."""

    def __init__(self, residents: Iterable[Drafter], vocab_size: int, fetch: Fetch) -> None:
        self._replicas = Replicas(residents, fetch)
        self._names = frozenset(drafter.name for drafter in self._replicas.drafters)
        self._rounds = FuseRounds(self._names | TABLES)
        self.calibration = Calibration()
        self._vocab_size = vocab_size

    def expect(self, jobs: Iterable[DraftJob]) -> None:
        """A verifier asks for trees; what it committed since the last round says how good that round's drafts were."""
        for job in jobs:
            context = self._replicas.follow(job)
            last = self._rounds.last(job.request_id)
            if context and last and last.job.base < job.base:
                self.calibration.update_from_drafts(last.drafts.values(), context.tokens[last.job.base :])
            if job.is_last:
                self._replicas.remove(job.request_id)
            elif context:
                self._rounds.open(job, context)

    def receive(self, drafts: Iterable[Draft]) -> None:
        """Drafters answer."""
        for draft in drafts:
            self._rounds.add(draft)

    def skip_models(self, jobs: Iterable[DraftJob]) -> set[str]:
        """Let the residents draft at once for open rounds. The requests for which they are so sure of the first token
        that no model need be asked beside them (`DraftJob.enough`)."""
        rounds = [r for job in jobs if (r := self._rounds.current(job)) is not None]
        self._ask_residents(rounds)
        asking = [r for r in rounds if not self._names.issuperset(r.job.drafters)]
        sure = [r for r in asking if max(self._fused(r).survival, default=0.0) > r.job.skip_models_above]
        for r in sure:
            r.skipped = tuple(name for name in r.job.drafters if name not in r.drafts and name not in self._names)
        return {r.job.request_id for r in sure}

    def collect(self, now_s: float, models_s: float = 0.0) -> list[tuple[str, TreeMessage]]:
        """(verifier's mailbox, tree) of every round that has all its drafts or is due; `models_s`: see TreeMessage."""
        rounds = self._rounds.close_ready(now_s)
        self._ask_residents(rounds)
        return [(r.job.verifier, self._tree(r, models_s)) for r in rounds]

    def wait_s(self, now_s: float) -> float | None:
        """How long until a round is due; None when none is open."""
        return self._rounds.wait_s(now_s)

    def _ask_residents(self, rounds: list[FuseRound]) -> None:
        """Those that were asked and have not drafted yet."""
        new = {r.job.request_id: r for r in rounds if not r.has_residents}
        for drafter in self._replicas.drafters:
            for draft in drafter.draft([r.context for r in new.values() if drafter.name in r.job.drafters]):
                if draft.request_id in new:
                    new[draft.request_id].drafts[draft.drafter] = draft
        for r in new.values():
            r.has_residents = True

    def _fused(self, r: FuseRound) -> Tree:
        if r.tree is None or r.fused < len(r.drafts):
            r.tree, r.fused = fuse(r.job, [*r.drafts.values()], self._vocab_size, self.calibration), len(r.drafts)
        return r.tree

    def _tree(self, r: FuseRound, models_s: float) -> TreeMessage:
        return message(r.job, self._fused(r), r.drafts.values(), r.skipped, models_s)

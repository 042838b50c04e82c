"""The fusion's segment: drafts in, one tree a sequence out. In the fusion task, and in a drafter node for its own."""

from collections.abc import Iterable

from app.calibration import Calibration
from app.following import Fetch, Following
from app.gathering import Gathering, Round, message
from app.messages import Draft, DraftJob, TreeMessage
from app.stages.draft.protocol import Drafter
from app.stages.fuse import fuse


class Fusing:
    """Gathers a round's drafts, adds the resident drafters' own, makes the tree."""

    def __init__(self, residents: Iterable[Drafter], vocab_size: int, fetch: Fetch) -> None:
        self._following = Following(residents, fetch)
        self._gathering = Gathering(drafter.name for drafter in self._following.drafters)
        self.calibration = Calibration()
        self._vocab_size = vocab_size

    def expect(self, jobs: Iterable[DraftJob]) -> None:
        """A verifier asks for trees; what it committed since the last round says how good that round's drafts were."""
        for job in jobs:
            context = self._following.follow(job)
            last = self._gathering.last(job.request_id)
            if context and last and last.job.base < job.base:
                self.calibration.learn(last.drafts.values(), context.tokens[last.job.base :])
            if job.is_last:
                self._following.forget(job.request_id)
            elif context:
                self._gathering.open(job, context)

    def receive(self, drafts: Iterable[Draft]) -> None:
        """Drafters answer."""
        for draft in drafts:
            self._gathering.add(draft)

    def collect(self, now_s: float) -> list[tuple[str, TreeMessage]]:
        """(verifier's mailbox, tree) of every round that has all its drafts or is due."""
        rounds = self._gathering.close_ready(now_s)
        by_id = {r.job.request_id: r for r in rounds}
        for drafter in self._following.drafters:
            for draft in drafter.draft([r.context for r in rounds if drafter.name in r.job.drafters]):
                if draft.request_id in by_id:
                    by_id[draft.request_id].drafts[draft.drafter] = draft
        return [(r.job.verifier, self._tree(r)) for r in rounds]

    def wait_s(self, now_s: float) -> float | None:
        """How long until a round is due; None when none is open."""
        return self._gathering.wait_s(now_s)

    def _tree(self, r: Round) -> TreeMessage:
        drafts = [*r.drafts.values()]
        return message(r.job, fuse(r.job, drafts, self._vocab_size, self.calibration), drafts)

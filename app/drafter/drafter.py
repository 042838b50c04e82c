"""The drafter node's segment: jobs in, drafts out; and where the node alone was asked, the fused tree at once."""

from collections.abc import Iterable, Iterator, Set

from app.clock import SYSTEM, Clock
from app.drafter.model import ModelDrafter
from app.drafter.replicas import Fetch, Following
from app.drafter.token_fusion import Cooperative
from app.fuser.fuser import Fusing
from app.messages import Draft, DraftJob, TreeMessage
from app.stages.draft.protocol import Drafter


class Drafting:
    """What a drafter node runs. Between jobs it may run ahead on sequences whose verdict is pending."""

    def __init__(
        self,
        drafters: Iterable[Drafter],
        fetch: Fetch,
        fusing: Fusing,
        mailbox: str,
        together: Cooperative | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        """Drafters that are in `together` share every token they guess; the others draft one by one."""
        self._following = Following(drafters, fetch)
        self._fusing = fusing
        self._mailbox = mailbox
        self._together = together
        self._clock = clock
        self._pending: set[str] = set()  # sequences to run ahead on

    def run(self, jobs: Iterable[DraftJob]) -> tuple[list[Draft], list[tuple[str, TreeMessage]]]:
        """Draft for the newest job of every sequence; each drafter only where it was asked.

        Returns drafts for the fusion task, and (verifier's mailbox, tree) of the jobs that are fused here.
        """
        newest = [*{job.request_id: job for job in jobs}.values()]
        self._pending.difference_update(job.request_id for job in newest)
        self._pending.update(job.request_id for job in newest if job.run_ahead and not job.is_last)
        fused_here = [job for job in newest if job.fuser == self._mailbox]
        self._fusing.expect(fused_here)
        spared = self._fusing.spare(fused_here)
        started = self._clock.perf_counter()
        drafts = self._draft(newest, spared)
        models_s = self._clock.perf_counter() - started if drafts else 0.0
        ours = {(job.request_id, job.base) for job in fused_here}
        self._fusing.receive(draft for draft in drafts if (draft.request_id, draft.base) in ours)
        away = [draft for draft in drafts if (draft.request_id, draft.base) not in ours]
        return away, self._fusing.collect(float("inf"), models_s)

    @property
    def has_ahead(self) -> bool:
        """Is there a sequence that it may be worth running ahead on?"""
        return bool(self._pending)

    def run_ahead(self) -> None:
        """One step of one drafter on sequences whose verdict is pending, as if all that was guessed were right."""
        for runner in self._runners():
            if runner.run_ahead(self._pending):
                return
        self._pending.clear()

    def ahead(self) -> dict[str, int]:
        """How often running ahead was of use, and how often not."""
        runners = [*self._runners()]
        return {
            "ahead_hits": sum(runner.ahead_hits for runner in runners),
            "ahead_misses": sum(runner.ahead_misses for runner in runners),
        }

    def _runners(self) -> Iterator[Cooperative | ModelDrafter]:
        if self._together is not None:
            yield self._together
        for drafter in self._following.drafters:
            if isinstance(drafter, ModelDrafter) and drafter.name not in self._shared:
                yield drafter

    @property
    def _shared(self) -> Set[str]:
        """The drafters that share their tokens."""
        return self._together.names if self._together is not None else frozenset()

    def _forget(self, request_id: str) -> None:
        self._following.forget(request_id)
        if self._together is not None:
            self._together.forget(request_id)

    def _draft(self, jobs: Iterable[DraftJob], spared: Set[str]) -> list[Draft]:
        contexts = []
        for job in jobs:
            context = self._following.follow(job)
            if job.is_last:
                self._forget(job.request_id)
            elif context and job.request_id not in spared:
                contexts.append((job, context))
        asks = [(context, job.drafters) for job, context in contexts]
        drafts = self._together.draft(asks) if self._together is not None else []
        for drafter in self._following.drafters:
            if drafter.name in self._shared:
                continue
            asked = [context for job, context in contexts if drafter.name in job.drafters]
            drafts += drafter.draft(asked) if asked else []
        return drafts


def in_time(jobs: Iterable[DraftJob], now_s: float) -> list[DraftJob]:
    """Without the jobs whose verifier has gone on already: a drafter that lags must not lag for ever."""
    return [job for job in jobs if job.is_last or job.due_s > now_s]

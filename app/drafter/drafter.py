"""The drafter node's segment: jobs in, drafts out; and where the node alone was asked, the fused tree at once."""

from collections.abc import Iterable, Iterator, Set

from app.clock import SYSTEM, Clock
from app.drafter.model import ModelDrafter
from app.drafter.replicas import Fetch, Replicas
from app.drafter.token_fusion import TokenFusion
from app.fuser.fuser import Fuser
from app.messages import Draft, DraftJob, TreeMessage
from app.stages.draft.protocol import Drafter


class DrafterNode:
    """What a drafter node runs. Between jobs it may run ahead on sequences whose verdict is pending."""

    def __init__(
        self,
        drafters: Iterable[Drafter],
        fetch: Fetch,
        fusing: Fuser,
        mailbox: str,
        together: TokenFusion | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        """Drafters that are in `together` share every token they guess; the others draft one by one."""
        self._replicas = Replicas(drafters, fetch)
        self._fuser = fusing
        self._mailbox = mailbox
        self._token_fusion = together
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
        self._fuser.expect(fused_here)
        spared = self._fuser.skip_models(fused_here)
        started = self._clock.perf_counter()
        drafts = self._draft(newest, spared)
        models_s = self._clock.perf_counter() - started if drafts else 0.0
        ours = {(job.request_id, job.base) for job in fused_here}
        self._fuser.receive(draft for draft in drafts if (draft.request_id, draft.base) in ours)
        away = [draft for draft in drafts if (draft.request_id, draft.base) not in ours]
        return away, self._fuser.collect(float("inf"), models_s)

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

    def _runners(self) -> Iterator[TokenFusion | ModelDrafter]:
        if self._token_fusion is not None:
            yield self._token_fusion
        for drafter in self._replicas.drafters:
            if isinstance(drafter, ModelDrafter) and drafter.name not in self._shared:
                yield drafter

    @property
    def _shared(self) -> Set[str]:
        """The drafters that share their tokens."""
        return self._token_fusion.names if self._token_fusion is not None else frozenset()

    def _remove(self, request_id: str) -> None:
        self._replicas.remove(request_id)
        if self._token_fusion is not None:
            self._token_fusion.remove(request_id)

    def _draft(self, jobs: Iterable[DraftJob], spared: Set[str]) -> list[Draft]:
        contexts = []
        for job in jobs:
            context = self._replicas.follow(job)
            if job.is_last:
                self._remove(job.request_id)
            elif context and job.request_id not in spared:
                contexts.append((job, context))
        asks = [(context, job.drafters) for job, context in contexts]
        drafts = self._token_fusion.draft(asks) if self._token_fusion is not None else []
        for drafter in self._replicas.drafters:
            if drafter.name in self._shared:
                continue
            asked = [context for job, context in contexts if drafter.name in job.drafters]
            drafts += drafter.draft(asked) if asked else []
        return drafts


def in_time(jobs: Iterable[DraftJob], now_s: float) -> list[DraftJob]:
    """Without the jobs whose verifier has gone on already: a drafter that lags must not lag for ever."""
    return [job for job in jobs if job.is_last or job.due_s > now_s]

"""Run the drafter node's segment: jobs in, drafts out; between jobs, guesses ahead of the verdicts."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from app.clock import SYSTEM, Clock
from app.drafter.draft_steps import DraftPart
from app.drafter.model import Drafting, ModelDrafter
from app.drafter.replicas import Fetch, Replicas
from app.drafter.shared_paths import SharedPaths
from app.drafter.token_fusion import TokenFusion
from app.messages import Draft, DraftJob, DraftReport, SharedPath, TokenGuess
from app.stages.draft.protocol import Drafter

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class JobBatch:
    """Jobs that came at once, their drafts, and the models' parts, whose drafts are added at the end."""

    jobs: list[DraftJob]
    drafts: list[Draft]
    parts: list[tuple[Drafting, DraftPart]]
    sequences: int
    began_s: float
    read: int  # tokens so far, by all models, when it began
    read_s: float

    def unfinished(self) -> list[Drafting]:
        return [drafting for drafting, part in self.parts if not part.is_done]


class DrafterNode:
    def __init__(
        self,
        drafters: Iterable[Drafter],
        fetch: Fetch,
        mailbox: str,
        token_fusion: TokenFusion | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        """Drafters in `token_fusion` share every token that they guess, others draft alone."""
        self.mailbox: Final = mailbox
        self._clock = clock
        self._replicas = Replicas(drafters, fetch)
        self._token_fusion = token_fusion
        self._fused = token_fusion.names if token_fusion is not None else frozenset[str]()
        self._models = {each.name: each for each in self._replicas.drafters if isinstance(each, ModelDrafter)}
        self._shared = SharedPaths(model.draft_kv for model in self._models.values())
        fused = [] if token_fusion is None else [token_fusion]
        self._ahead: list[TokenFusion | ModelDrafter] = [
            *fused,
            *(model for name, model in self._models.items() if name not in self._fused),
        ]
        self._pending: dict[str, None] = {}  # sequences to run ahead on, in order
        self._batches: list[JobBatch] = []  # under way, in order

    def begin(self, jobs: Iterable[DraftJob]) -> None:
        """Begin to draft for jobs, one a sequence at most; one that is not stale takes the place of the earlier one.

        A job that several nodes share begins a path, for `guess`.
        """
        jobs, began = [*jobs], (self._clock.perf_counter(), *self._reading())
        if not jobs:
            return
        contexts = []
        for job in jobs:
            runs_ahead = job.step_s > 0.0 and not job.is_last and not job.sharing
            self._pending.pop(job.request_id, None)
            if runs_ahead:
                self._pending[job.request_id] = None
            context = self._replicas.update(job)
            if job.is_last:
                self._remove(job.request_id)
            elif context and job.sharing:
                self._shared.start(context, job.drafters)
            elif context:
                contexts.append((context, job.drafters))
        drafts: list[Draft] = []
        parts: list[tuple[Drafting, DraftPart]] = []
        if self._token_fusion is not None and contexts:
            parts.append((self._token_fusion, self._token_fusion.begin(contexts)))
        for drafter in self._replicas.drafters:
            wanted = [context for context, names in contexts if drafter.name in names]
            if not wanted or drafter.name in self._fused:
                continue
            try:
                if isinstance(drafter, ModelDrafter):
                    parts += drafter.begin(wanted)
                else:
                    drafts += drafter.draft(wanted)
            except Exception:  # what others draft must not be lost
                log.exception("drafter %s failed", drafter.name)
        drafted = sum(not context.is_reading for context, _ in contexts)
        self._batches.append(JobBatch(jobs, drafts, parts, drafted, *began))

    @property
    def is_drafting(self) -> bool:
        return bool(self._batches)

    @property
    def waiting(self) -> int:
        """Return how many batches are under way. For any thread."""
        return len(self._batches)

    def drop_late(self, now_s: float) -> None:
        """End batches of which all jobs are past due, so that a late drafter can catch up. `now_s`: wall clock."""
        for batch in self._batches:
            if all(job.due_s <= now_s for job in batch.jobs if not job.is_reading):
                for _, part in batch.parts:
                    part.is_done = True

    def go_on(self) -> list[JobBatch]:
        """Make a pass, unless a batch is done already; return the batches that are done."""
        drafting = next((drafting for batch in self._batches for drafting in batch.unfinished()), None)
        if drafting is not None and all(batch.unfinished() for batch in self._batches):
            try:
                drafting.go_on(self._pending)
            except Exception:  # what others draft must not be lost
                log.exception("a pass of a drafter failed")
                for batch in self._batches:
                    for own, part in batch.parts:
                        part.is_done |= own is drafting
        done = [batch for batch in self._batches if not batch.unfinished()]
        self._batches = [batch for batch in self._batches if batch not in done]
        for batch in done:
            self._end(batch)
        return done

    def _end(self, batch: JobBatch) -> None:
        """Take over the models' drafts, each with a report.

        Each guess counts as one more guess takes, where that is known of all models: a round's first one also reads the
        last verdict.
        """
        read, read_s = self._reading()
        read_s -= batch.read_s
        took_s = max(0.0, self._clock.perf_counter() - batch.began_s - read_s)
        levels_s = [part.levels * drafting.level_s for drafting, part in batch.parts]
        report = DraftReport(
            guess_s=min(took_s, sum(levels_s)) if all(own.level_s for own, _ in batch.parts) else took_s,
            guessed=max((part.levels for _, part in batch.parts), default=0),
            batch=batch.sequences,
            read_s=read_s,
            read_tokens=read - batch.read,
        )
        batch.drafts = [
            replace(draft, report=replace(report, seen=min(draft.base, own.draft_kv.seen(draft.request_id))))
            if (own := self._models.get(draft.drafter)) is not None
            else draft
            for draft in [*batch.drafts, *(draft for _, part in batch.parts for draft in part.drafts)]
        ]

    def guess(self, paths: Iterable[SharedPath]) -> list[TokenGuess]:
        for path in paths:
            self._shared.receive(path)
        return self._shared.guess()

    @property
    def has_ahead(self) -> bool:
        return bool(self._pending)

    def run_ahead(self) -> None:
        """Make one pass of one drafter for sequences whose verdict is pending."""
        try:
            has_more = any(model.read_ahead(self._pending) for model in self._models.values())
            has_more = has_more or any(own.run_ahead(self._pending) for own in self._ahead)
        except Exception:
            log.exception("a pass of a drafter failed")
            has_more = False
        if not has_more:
            self._pending.clear()

    def info(self) -> dict[str, int]:
        hits, misses = zip(*(own.ahead for own in self._ahead), strict=True) if self._ahead else ((), ())
        return {
            "ahead_hits": sum(hits),
            "ahead_misses": sum(misses),
            "shared_guesses": self._shared.guesses,
        }

    def _reading(self) -> tuple[int, float]:
        kvs = [model.draft_kv for model in self._models.values()]
        return sum(kv.read for kv in kvs), sum(kv.read_s for kv in kvs)

    def _remove(self, request_id: str) -> None:
        self._replicas.remove(request_id)
        self._shared.remove(request_id)
        if self._token_fusion is not None:
            self._token_fusion.remove(request_id)


def in_time(jobs: Iterable[DraftJob], now_s: float) -> list[DraftJob]:
    """Drop the jobs past due, so that a late drafter can catch up."""
    return [job for job in jobs if job.is_last or job.due_s > now_s]

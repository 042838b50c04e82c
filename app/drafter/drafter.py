"""Run the drafter node's segment: jobs in, drafts out; between jobs, guesses ahead of the verdicts."""

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from app.clock import SYSTEM, Clock
from app.drafter.model import ModelDrafter
from app.drafter.replicas import Fetch, Replicas
from app.drafter.shared_paths import SharedPaths
from app.drafter.token_fusion import TokenFusion
from app.messages import Draft, DraftJob, DraftReport, SharedPath, TokenGuess
from app.stages.draft.protocol import Drafter


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
        self._pending: set[str] = set()  # sequences to run ahead on

    def draft(self, jobs: Iterable[DraftJob]) -> list[Draft]:
        """Draft for jobs, one a sequence at most.

        Each model's draft carries a report. Each guess counts as one more guess takes, where that is known of all
        models: a round's first one also reads the last verdict. A job that several nodes share begins a path, for
        `guess`.
        """
        began_s, read, read_s = self._clock.perf_counter(), *self._reading()
        contexts = []
        for job in jobs:
            runs_ahead = job.step_s > 0.0 and not job.is_last and not job.sharing
            (self._pending.add if runs_ahead else self._pending.discard)(job.request_id)
            context = self._replicas.update(job)
            if job.is_last:
                self._remove(job.request_id)
            elif context and job.sharing:
                self._shared.start(context, job.drafters)
            elif context:
                contexts.append((context, job.drafters))
        drafts = self._token_fusion.draft(contexts) if self._token_fusion is not None else []
        guessed = [self._token_fusion.guessed] if self._token_fusion is not None and contexts else []
        levels_s = [0.0] * len(guessed)  # a model's guesses, as one more takes; 0: not known
        for drafter in self._replicas.drafters:
            wanted = [context for context, names in contexts if drafter.name in names]
            if wanted and drafter.name not in self._fused:
                drafts += drafter.draft(wanted)
                if isinstance(drafter, ModelDrafter):
                    guessed.append(drafter.guessed)
                    levels_s.append(drafter.guessed * drafter.draft_kv.usual_level_s)
        now_read, now_read_s = self._reading()
        took_s = max(0.0, self._clock.perf_counter() - began_s - (now_read_s - read_s))
        report = DraftReport(
            guess_s=min(took_s, sum(levels_s)) if all(levels_s) else took_s,
            guessed=max(guessed, default=0),
            batch=len(contexts),
            read_s=now_read_s - read_s,
            read_tokens=now_read - read,
        )
        return [
            replace(draft, report=replace(report, seen=draft.base)) if draft.drafter in self._models else draft
            for draft in drafts
        ]

    def guess(self, paths: Iterable[SharedPath]) -> list[TokenGuess]:
        for path in paths:
            self._shared.receive(path)
        return self._shared.guess()

    @property
    def has_ahead(self) -> bool:
        return bool(self._pending)

    def run_ahead(self) -> None:
        """Take one step of one drafter on sequences whose verdict is pending."""
        if not any(own.run_ahead(self._pending) for own in self._ahead):
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

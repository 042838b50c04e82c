"""Run a verifier: schedule, verify, commit, and ask for the next drafts."""

import logging
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Listed
from contextlib import suppress
from dataclasses import dataclass
from operator import add
from typing import Final, NamedTuple, Self

from msgspec.structs import replace

from app.clock import SYSTEM, Clock
from app.engine.step_costs import StepCosts
from app.engine.target import LaunchedStep
from app.errors import NotFound, TargetLost
from app.load import VerifierLoad
from app.logs import of
from app.messages import DraftJob, Event, FinishReason, Record, Status, TreeMessage
from app.policy import Policy
from app.round_observer import RoundObserver, VerifiedRound, VerifiedStep
from app.scheduler.compose import TAIL_TOKENS, compose, wait_s
from app.scheduler.prefill import prompts_of
from app.scheduler.tree_budget import BatchSelection
from app.speculation.drafter_pool import DrafterPool
from app.speculation.speculation import Speculation
from app.stages.commit import Conclusion, conclude, event_of
from app.stages.verify import verify
from app.state import NO_PROMPTS, BatchEntry, Sequence, Verdict
from app.store.protocol import Outcome, Requests
from app.verifier.measured_target import MeasuredTarget
from app.verifier.memory import OutOfMemoryRetry, is_out_of_memory
from app.verifier.pending_commit import PendingCommit
from app.verifier.sequences import Sequences
from app.verifier.stats import VerifierStats

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Running:
    """A launched step and, once collected, its verdicts; `costs` are those of its split, which it teaches."""

    works: list[BatchEntry]
    launched: LaunchedStep
    costs: StepCosts
    reading_s: float
    num_rows: int
    num_silent: int  # of its rows: a prompt's but its last, which have no logits
    is_decoding: bool  # no entry is a chunk of a prompt
    verdicts: list[Verdict | None] | None = None

    @classmethod
    def of(cls, works: list[BatchEntry], launched: LaunchedStep, costs: StepCosts) -> Self:
        nodes = [len(work.tree.tokens) for work in works]
        tokens = [len(work.tokens) for work in works]
        rows = [*map(add, tokens, nodes)]
        reading_s = costs.reading.step_s(zip([work.start for work in works], rows, strict=True))
        finals = [work.final for work in works].count(True)
        silent = sum(tokens) - finals
        return cls(works, launched, costs, reading_s, sum(rows), silent, finals == len(works))


class _Uncommitted(NamedTuple):
    step: VerifiedStep
    conclusions: list[Conclusion]
    accepted_s: float
    host_s: float


class Verifier:
    """Own the progress of its sequences. One thread works with it; others may call `follow`, `report` and `load`."""

    def __init__(
        self,
        owner: str,
        mailbox: str,
        store: Requests,
        measured: MeasuredTarget,
        sequences: Sequences,
        speculation: Speculation,
        stats: VerifierStats,
        selection: BatchSelection,
        *,
        target_id: str = "",
        on_lost: Callable[[Exception], None] | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        """Commit to `store` as `owner`, whose mail comes to `mailbox`.

        `on_lost` is called where a lone sequence lacks memory for long, and where the target runs no more steps; by
        default the request then fails.
        """
        self.owner: Final = owner
        self.target_id: Final = target_id
        self.target: Final = measured.target
        self.sequences: Final = sequences
        self.speculation: Final = speculation
        self.stats: Final = stats
        self._observers: tuple[RoundObserver, ...] = (stats, stats.metrics, speculation)
        # Each event is told, so only to observers that listen.
        self._on_commit = [o.on_commit for o in self._observers if type(o).on_commit is not RoundObserver.on_commit]
        self._store = store
        self.costs: Final = measured.costs
        self._early_exit = measured.early_exit
        self._selection = selection
        self._on_lost = on_lost
        self._clock = clock
        self._pending_commit = PendingCommit(owner, mailbox, store)
        self._memory_retry = OutOfMemoryRetry(clock)
        self._chunk_tokens = measured.chunk_tokens
        self._policy = self._on_device(Policy())
        self._running: _Running | None = None
        self._uncommitted: _Uncommitted | None = None
        self._left: list[DraftJob] = []  # jobs that the next `collect` returns
        self._host_s = 0.0  # beside the target, since the last step was collected
        self._ended: list[Record] = []
        self._stepped: list[BatchEntry] = []

    @property
    def policy(self) -> Policy:
        """Return the policy, with the target's chunk of prompts where that is longer."""
        return self._policy

    @property
    def stepped(self) -> Listed[BatchEntry]:
        return self._stepped

    def follow(self, pool: DrafterPool, policy: Policy) -> None:
        """Follow drafters and policy. For any thread.

        Two references are swapped: a step under way may use one old and one new object, which costs time at most.
        """
        self.speculation.follow(pool)
        self._policy = self._on_device(policy)

    def _on_device(self, policy: Policy) -> Policy:
        size = max(policy.prefill_chunk_tokens, self._chunk_tokens)
        return policy.model_copy(update={"prefill_chunk_tokens": size})

    def report(self) -> dict[str, object]:
        """Describe the verifier for its heartbeat. For any thread."""
        errors = {
            "step": self.costs.error.value,
            "exit": self._early_exit.error.value,
            "drafts": self.speculation.pending.error,
        }
        split = self.speculation.split._asdict()
        return {**self.stats.report(self.sequences.all()), "cost_errors": errors, "split": split}

    def load(self) -> VerifierLoad:
        return self.stats.load(self.sequences.all())

    def has_mail(self) -> bool:
        """Tell whether mail waited at the last commit; True where that is not known."""
        return self._pending_commit.has_mail()

    def take_ended(self) -> list[Record]:
        ended, self._ended = self._ended, []
        return ended

    def adopt(self, request_ids: Iterable[str]) -> None:
        """Run those requests that are this owner's by the store."""
        for request_id in request_ids:
            if request_id in self.sequences:
                continue
            try:
                snapshot = self._store.snapshot(request_id)
            except NotFound:
                continue
            if snapshot.status is Status.ACTIVE and snapshot.owner == self.owner:
                self.sequences.start(snapshot)

    def release(self, request_ids: Iterable[str]) -> None:
        """Drop sequences that were cancelled, or taken over by another verifier."""
        for request_id in request_ids:
            if self._pending_commit.ends(request_id):
                continue  # by its own last token, most likely: the outcome tells
            sequence = self._stop(request_id)
            if sequence is not None:
                self._record_left(sequence, sequence.generated, FinishReason.CANCELLED)

    def receive(self, trees: Iterable[TreeMessage]) -> None:
        self.speculation.receive(*trees)

    def wait_s(self, now_s: float) -> float | None:
        """Return the seconds until a sequence can go on, at most the policy's wait; None if there is none."""
        if self._running is not None or self._left or self._pending_commit.ends_any:
            return 0.0
        sequences = self.sequences.oldest()
        self.speculation.limit_waits(sequences, now_s + self._policy.draft_wait_s)
        suspects, is_together = self.sequences.suspects, self.speculation.is_together
        drafts_here = self.speculation.drafts_here
        return wait_s(sequences, self._policy, now_s, self.costs, suspects, is_together, drafts_here)

    def step(self, now_s: float) -> list[DraftJob]:
        """Run and commit one batch, if any sequence is ready; return the jobs for drafts."""
        jobs = self._settle()
        self.launch(now_s)
        jobs += self.collect()
        self.commit()
        if self._pending_commit.ends_any:
            jobs += self._settle()
        return jobs

    def launch(self, now_s: float) -> None:
        """Launch a step of the ready sequences, unless one runs. `now_s`: wall clock."""
        if self._running is not None:
            return
        began_s = self._clock.perf_counter()
        works = self._stepped = self._compose(now_s)
        if works:
            for observer in self._observers:
                observer.on_start(map(self._sequence, works), self._clock.time())
            self._early_exit.allow(works, self.costs, is_wanted=self._policy.pruning)
            try:
                costs = self.costs.at(self.costs.split)
                self._running = _Running.of(works, self.target.launch(works), costs)
            except Exception as error:  # one request's failure must not end the others
                self._isolate(works, error)
        self._host_s += self._clock.perf_counter() - began_s

    def collect(self) -> list[DraftJob]:
        """Wait for the step that runs, accept its tokens, and return the jobs for drafts after them.

        Reads the last commit's outcomes. Sequences go on as if the next one succeeded. Raises StoreUnavailable, before
        anything is accepted: the next call goes on from there.
        """
        began_s = self._clock.perf_counter()
        if self._uncommitted is not None:  # the last round was cut short
            self._left += self._settle()
            self.commit()
        running = self._running
        if self._pending_commit.is_ready or (running is not None and running.launched.runs_beside):
            self._left += self._settle()  # waiting for it costs nothing while the target is at work
        waiting_s = self._clock.perf_counter()
        if running is not None and running.verdicts is None:
            try:
                running.verdicts = verify(running.works, running.launched.collect())
            except Exception as error:
                self._running = None
                self._isolate(running.works, error)
        waited_s = self._clock.perf_counter() - waiting_s
        self._left += self._settle()
        jobs, self._left = self._left, []
        if running is None or running.verdicts is None:
            return jobs
        self._running = None
        done = self._accept(running, running.verdicts)
        jobs += self._request_drafts([one.sequence for one in done.step.rounds if not one.sequence.is_over])
        hidden_s = max(0.0, running.launched.took_s - waited_s)  # the host worked beside the target
        host_s = self._host_s + self._clock.perf_counter() - began_s - waited_s - hidden_s
        self._uncommitted, self._host_s = done._replace(host_s=max(0.0, host_s)), 0.0
        return jobs

    def commit(self) -> None:
        """Send the commit of the tokens accepted last; a later `collect` reads its outcomes.

        Raises StoreUnavailable; then `collect` sends it again.
        """
        if self._uncommitted is None:
            return
        began_s = self._clock.perf_counter()
        done, self._uncommitted = self._uncommitted, None
        events: list[tuple[Sequence, Event]] = []
        for one, conclusion in zip(done.step.rounds, done.conclusions, strict=True):
            sequence = one.sequence
            event = event_of(
                conclusion,
                sequence.stats,
                one.entry.tree,
                one.verdict,
                done.accepted_s,
                with_rejected=sequence.record.speculation.rejected,
            )
            if not event.offset and sequence.scores:
                scores = tuple(score for _, score in sorted(sequence.scores.items()))
                event, sequence.scores = replace(event, prompt_logprobs=scores), {}
            sequence.stats = event.stats
            events.append((sequence, event))
        try:
            self._pending_commit.send(events)
        finally:
            for observer in self._observers:
                observer.on_step(done.step, done.host_s)
            self._host_s += self._clock.perf_counter() - began_s

    def _compose(self, now_s: float) -> list[BatchEntry]:
        sequences, is_together = self.sequences.oldest(), self.speculation.is_together
        self.sequences.adopt_prefixes(sequences)
        batch = compose(
            sequences,
            self._policy,
            now_s,
            self.costs,
            self.sequences.suspects,
            is_together,
            self._selection,
            self.speculation.drafts_here,
        )
        return self.sequences.reserve(batch)

    def _accept(self, running: "_Running", verdicts: list[Verdict | None]) -> _Uncommitted:
        works, took_s, costs = running.works, running.launched.took_s, running.costs
        self._early_exit.update(works, verdicts)
        if running.is_decoding:
            whole_s = self._early_exit.whole_s(works, costs, took_s, running.reading_s)
            costs.correct(running.num_rows, whole_s, running.reading_s, running.num_silent)
        rounds: list[VerifiedRound] = []
        conclusions: list[Conclusion] = []
        for work, verdict in zip(works, verdicts, strict=True):
            sequence = self.sequences.find(work.sequence.id)
            if sequence is None or sequence.kv is not work.sequence:  # ended or lost meanwhile
                self.target.drop(work)
            elif verdict is None:
                self.target.cover(work.sequence, work.start + len(work.tokens))
            elif work.scores is not None:
                self.target.accept(work, verdict.path)
                sequence.scores.update(enumerate(verdict.logprobs, work.start + 1))
            else:
                conclusions.append(conclude(sequence, verdict))
                rounds.append(VerifiedRound(sequence, work, verdict, conclusions[-1].tokens))
        done = _Uncommitted(
            VerifiedStep(works, rounds, running.num_rows, took_s), conclusions, self._clock.time(), host_s=0.0
        )
        self._advance(done)
        return done

    def _request_drafts(self, sequences: list[Sequence]) -> list[DraftJob]:
        waiting = NO_PROMPTS
        if len(self.sequences) > len(sequences):
            prompts = [sequence for sequence in self.sequences.oldest() if sequence.uncached > TAIL_TOKENS]
            waiting = prompts_of(prompts, self._policy, self.costs, self.costs.seconds(len(sequences)))
        return self.speculation.request_drafts(sequences, self._policy, waiting)

    def _settle(self) -> list[DraftJob]:
        jobs: list[DraftJob] = []
        for sequence, event, outcome in self._pending_commit.settle():
            if outcome is Outcome.COMMITTED:
                for on_commit in self._on_commit:
                    on_commit(sequence, event)
                if event.finish_reason is not None:
                    tokens, rounds = event.offset + len(event.tokens), event.stats.rounds
                    log.info(
                        "%s: %d tokens, %d rounds", event.finish_reason, tokens, rounds, extra=of(sequence.record.id)
                    )
            elif self._runs(sequence):
                log.info("commit %s, letting go", outcome, extra=of(sequence.record.id))
                self._record_left(sequence, event.offset, FinishReason.CANCELLED)
            if outcome is not Outcome.COMMITTED or event.finish_reason is not None:
                jobs += self._end(sequence)
        return jobs

    def _end(self, sequence: Sequence) -> list[DraftJob]:
        if not self._runs(sequence):
            return []  # released since then
        jobs = self.speculation.final_jobs(sequence)
        self._stop(sequence.record.id)
        self._ended.append(sequence.record)
        return jobs

    def _stop(self, request_id: str) -> Sequence | None:
        sequence = self.sequences.stop(request_id)
        self.speculation.remove(request_id)
        self._memory_retry.remove(request_id)
        return sequence

    def _sequence(self, work: BatchEntry) -> Sequence:
        return self.sequences[work.sequence.id]

    def _runs(self, sequence: Sequence) -> bool:
        return self.sequences.find(sequence.record.id) is sequence

    def _advance(self, done: _Uncommitted) -> None:
        for observer in self._observers:
            observer.on_verdict(done.step)
        accept = self.target.accept
        for one, conclusion in zip(done.step.rounds, done.conclusions, strict=True):
            sequence, verdict, tokens = one.sequence, one.verdict, one.tokens
            accept(one.entry, verdict.path)
            kv = sequence.kv
            kv.tokens += tokens
            kv.state = verdict.state if len(tokens) == len(verdict.tokens) else None
            sequence.last_token_s = done.accepted_s
            sequence.is_over = conclusion.finish_reason is not None
        requests = [one.sequence.record.id for one in done.step.rounds]
        self.sequences.clear(requests)
        self._memory_retry.remove(*requests)

    def _isolate(self, works: list[BatchEntry], error: Exception) -> None:
        """Run a failed step's sequences one by one, until the one at fault fails alone."""
        log.exception("a step of %d sequences failed", len(works))
        for observer in self._observers:
            observer.on_failure()
        for work in works:
            self.target.invalidate(work)
            if work.sequence.id in self.sequences:
                self.sequences.suspect(work.sequence.id)
        is_lost = isinstance(error, TargetLost) and self._on_lost is not None
        if not is_lost and (len(works) > 1 or self._memory_retry.may_try_again(works[0].sequence.id, error)):
            return
        if self._on_lost is not None and (is_lost or is_out_of_memory(error)):
            self._on_lost(error)
            return
        sequence = self.sequences.find(works[0].sequence.id)
        if sequence is None:  # ended or lost meanwhile
            return
        with suppress(NotFound):
            self._store.end(sequence.record.id, FinishReason.ERROR, f"the target failed on this request: {error}")
        self._record_left(sequence, sequence.generated, FinishReason.ERROR)
        self._left += self._end(sequence)

    def _record_left(self, sequence: Sequence, tokens: int, reason: FinishReason) -> None:
        for observer in self._observers:
            observer.on_left(sequence, tokens, reason)

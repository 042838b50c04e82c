"""Run a verifier: schedule, verify, commit, and ask for the next drafts."""

import logging
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Listed
from contextlib import suppress

from app.clock import SYSTEM, Clock
from app.config import Settings
from app.engine.target import Target
from app.errors import NotFound
from app.estimates.step_costs import StepCosts
from app.logs import of
from app.messages import DraftJob, Event, FinishReason, Record, Status, TreeMessage
from app.policy import Policy
from app.stages.commit import conclude
from app.stages.schedule.compose import compose, wait_s
from app.stages.schedule.cosine import Pooled, choose
from app.stages.verify import verify
from app.state import BatchEntry, Sequence, Tree, Verdict
from app.store.protocol import Outcome, Requests
from app.telemetry.verifier_metrics import VerifiedTree
from app.verifier.out_of_memory import OutOfMemoryRetry, is_out_of_memory
from app.verifier.pending_commit import PendingCommit
from app.verifier.sequences import Running

log = logging.getLogger(__name__)


class Verifier:
    """What a verifier runs: schedule, verify, commit, and ask for the next drafts. It owns its sequences' progress."""

    def __init__(
        self,
        owner: str,
        target: Target,
        running: Running,
        store: Requests,
        settings: Settings,
        clock: Clock = SYSTEM,
    ) -> None:
        self.owner = owner
        self.running = running
        self.policy = Policy()
        self.target = target
        self.ended: list[Record] = []  # whoever runs the segment takes them from here
        self.stepped: list[BatchEntry] = []  # the last step's
        self.exhausted: Callable[[], None] | None = (
            None  # told of lasting want of memory; else the request fails for it
        )
        self._store = store
        self._pending_commit = PendingCommit(owner, store)
        self._memory_retry = OutOfMemoryRetry(clock)
        self._max_sequences = settings.max_sequences
        self._select = self._cosine if settings.batching == "cosine" else None
        self._clock = clock

    def adopt(self, request_ids: Iterable[str]) -> None:
        """Take over requests that the store says are ours; others are left alone."""
        for request_id in request_ids:
            if request_id in self.running.sequences:
                continue
            try:
                snapshot = self._store.snapshot(request_id)
            except NotFound:
                continue
            if snapshot.status is Status.ACTIVE and snapshot.owner == self.owner:
                self.running.start(snapshot)

    def release(self, request_ids: Iterable[str]) -> None:
        """Drop sequences that are no longer ours: cancelled, or taken over by another verifier."""
        for request_id in request_ids:
            sequence = self.running.stop(request_id)
            self._memory_retry.remove(request_id)
            if sequence is not None:
                self._record_left(sequence, FinishReason.CANCELLED)

    def receive(self, trees: Iterable[TreeMessage]) -> None:
        """Drafts came in, fused."""
        for tree in trees:
            self.running.receive(tree)

    def wait_s(self, now_s: float) -> float | None:
        """How long until a sequence can go on without its tree; 0 if one can now, None if there is none."""
        return wait_s(self._runnable(now_s), now_s, self.running.is_together, self.policy.apart_tokens)

    def step(self, now_s: float) -> list[DraftJob]:
        """Run one batch, if any sequence is ready, and commit what came out. Returns the jobs for the next drafts."""
        running = self.running
        jobs = self._settle()
        runnable = self._runnable(now_s)
        running.adopt_prefixes(runnable)
        works = running.reserve(
            compose(
                runnable,
                self.policy,
                now_s,
                running.costs,
                running.suspects,
                running.is_together,
                self._select,
                in_halves=not running.is_together,
            )
        )
        self.stepped = works
        if not works:
            return jobs
        reading_s = _reading_s(works, running.costs)
        running.metrics.record_started((self._sequence(work).record for work in works), self._clock.time())
        running.pruning.allow(works, running.costs, is_wanted=self.policy.pruning)
        started = self._clock.perf_counter()
        try:
            verdicts = verify(works, self.target.forward(works))
        except Exception as error:  # whatever one request does to the target, the others must get on
            return jobs + self._isolate(works, error)
        took_s = self._clock.perf_counter() - started
        running.pruning.update(works, running.costs)
        rows = sum(len(work.tokens) + len(work.tree) for work in works)
        if all(work.final for work in works):
            running.costs.correct(rows, running.pruning.whole_s(works, running.costs, took_s), reading_s)
        return jobs + self._commit(works, verdicts, rows, took_s)

    def _cosine(self, sequences: Listed[Sequence], trees: Listed[Tree], max_rows: int) -> list[int | None]:
        """CoSine's batch of these."""
        pool = [
            Pooled(len(s.tokens), s.uncached, len(tree), s.stats.last_token_s or s.record.created_s)
            for s, tree in zip(sequences, trees, strict=True)
        ]
        return choose(pool, self.running.costs, self.running.draft_costs.seconds, max_rows)

    def _runnable(self, now_s: float) -> list[Sequence]:
        sequences = sorted(self.running.sequences.values(), key=lambda s: (s.record.created_s, s.record.id))
        for sequence in sequences:  # no wait is longer than this, though the clock may have been put back
            sequence.due_s = min(sequence.due_s, now_s + self.policy.draft_wait_s)
        return sequences[: self._max_sequences]

    def _commit(
        self, works: list[BatchEntry], verdicts: list[Verdict | None], rows: int, took_s: float
    ) -> list[DraftJob]:
        """Send the verdicts off to be committed, and go on as if they were: `_settle` hears what became of them."""
        now_s = self._clock.time()
        final: list[tuple[BatchEntry, Verdict, Event]] = []
        for work, verdict in zip(works, verdicts, strict=True):
            if verdict is None:
                self.target.cover(work.sequence, work.start + len(work.tokens))
            else:
                final.append((work, verdict, conclude(self._sequence(work), work.tree, verdict, now_s)))
        rounds = [VerifiedTree(work.tree, verdict.path, len(event.tokens)) for work, verdict, event in final]
        self.running.metrics.record_step(len(works), rows, took_s, rounds)
        try:
            self._pending_commit.send([(self._sequence(work), event) for work, _, event in final])
        except Exception:
            for work, _, _ in final:
                self.target.drop(work)
            raise
        for work, verdict, event in final:
            self._advance(work, verdict, event)
        going_on = [self._sequence(work) for work, _, event in final if event.finish_reason is None]
        jobs = self.running.request_drafts(going_on, self.policy)
        return jobs if len(going_on) == len(final) else jobs + self._settle()

    def _settle(self) -> list[DraftJob]:
        """What became of the last commit: sequences that ended, or are no longer ours, leave."""
        jobs: list[DraftJob] = []
        for sequence, event, outcome in self._pending_commit.settle():
            if outcome is Outcome.COMMITTED:
                self.running.metrics.record_committed(sequence.record, event)
                if event.finish_reason is not None:
                    tokens, rounds = event.offset + len(event.tokens), event.stats.rounds
                    log.info(
                        "%s: %d tokens, %d rounds", event.finish_reason, tokens, rounds, extra=of(sequence.record.id)
                    )
            elif self._runs(sequence):
                log.info("commit %s, letting go", outcome, extra=of(sequence.record.id))
                self.running.metrics.record_left(sequence.record, event.offset, sequence.stats, FinishReason.CANCELLED)
            if outcome is not Outcome.COMMITTED or event.finish_reason is not None:
                jobs += self._end(sequence)
        return jobs

    def _end(self, sequence: Sequence) -> list[DraftJob]:
        """A sequence is over for us: the jobs that tell those who followed it."""
        if not self._runs(sequence):
            return []  # let go since then
        self._memory_retry.remove(sequence.record.id)
        jobs = self.running.final_jobs(sequence)
        self.running.stop(sequence.record.id)
        self.ended.append(sequence.record)
        return jobs

    def _runs(self, sequence: Sequence) -> bool:
        return self.running.sequences.get(sequence.record.id) is sequence

    def _sequence(self, work: BatchEntry) -> Sequence:
        return self.running.sequences[work.sequence.id]

    def _advance(self, work: BatchEntry, verdict: Verdict, event: Event) -> None:
        sequence = self._sequence(work)
        self.running.stats.record_verified(work.tree, verdict.path)
        if sequence.tree is not None:
            self.running.update(sequence, sequence.tree, event.tokens)
        self.target.accept(work, verdict.path)
        sequence.kv.tokens += event.tokens
        sequence.stats = event.stats
        sequence.kv.state = verdict.state if len(event.tokens) == len(verdict.tokens) else None
        sequence.tree, sequence.due_s = None, 0.0
        self.running.suspects.discard(sequence.record.id)
        self._memory_retry.remove(sequence.record.id)

    def _isolate(self, works: list[BatchEntry], error: Exception) -> list[DraftJob]:
        """A step failed: its sequences run one by one until the one at fault fails alone."""
        log.exception("a step of %d sequences failed", len(works))
        self.running.metrics.record_failed()
        for work in works:
            self.target.invalidate(work)
            self.running.suspects.add(work.sequence.id)
        if len(works) > 1 or self._memory_retry.may_try_again(works[0].sequence.id, error):
            return []
        if self.exhausted is not None and is_out_of_memory(error):
            self.exhausted()
            return []
        sequence = self._sequence(works[0])
        with suppress(NotFound):
            self._store.end(sequence.record.id, FinishReason.ERROR, f"the target failed on this request: {error}")
        self._record_left(sequence, FinishReason.ERROR)
        return self._end(sequence)

    def _record_left(self, sequence: Sequence, reason: FinishReason) -> None:
        self.running.metrics.record_left(sequence.record, sequence.generated, sequence.stats, reason)


def _reading_s(works: Listed[BatchEntry], costs: StepCosts) -> float:
    """What reading the contexts of these is expected to take."""
    reading = costs.reading
    return sum(reading.seconds(work.start, len(work.tokens) + len(work.tree)) for work in works)

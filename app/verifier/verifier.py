"""Run a verifier: schedule, verify, commit, and ask for the next drafts."""

import logging
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Listed
from contextlib import suppress
from typing import Final

from app.clock import SYSTEM, Clock
from app.errors import NotFound
from app.estimates.step_costs import StepCosts
from app.logs import of
from app.messages import DraftJob, Event, FinishReason, Record, Status, TreeMessage
from app.policy import Policy
from app.stages.commit import conclude
from app.stages.route.drafter_pool import DrafterPool
from app.stages.schedule.compose import compose, wait_s
from app.stages.schedule.tree_budget import BatchSelection
from app.stages.steer.load import VerifierLoad
from app.stages.verify import verify
from app.state import BatchEntry, Sequence, Verdict
from app.store.protocol import Outcome, Requests
from app.telemetry.verifier_metrics import VerifiedTree
from app.verifier.measured_target import MeasuredTarget
from app.verifier.out_of_memory import OutOfMemoryRetry, is_out_of_memory
from app.verifier.pending_commit import PendingCommit
from app.verifier.speculation import Speculation

log = logging.getLogger(__name__)


class Verifier:
    """Own the progress of its sequences: schedule, verify, commit, and ask for the next drafts.

    One thread works with it. Others may call `follow`, `report` and `load`.
    """

    def __init__(
        self,
        owner: str,
        mailbox: str,
        store: Requests,
        measured: MeasuredTarget,
        speculation: Speculation,
        selection: BatchSelection,
        *,
        target_id: str = "",
        on_exhausted: Callable[[], None] | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        """Commit to `store` as `owner`, whose mail comes to `mailbox`, tokens of the target of this id.

        `on_exhausted` is called where a lone sequence lacks memory for long; without it the request
        fails for that.
        """
        self.owner: Final = owner
        self.target_id: Final = target_id
        self.target: Final = measured.target
        self.speculation: Final = speculation
        self.sequences: Final = speculation.sequences
        self.stats: Final = speculation.stats
        self._store = store
        self._costs = measured.costs
        self._early_exit = measured.early_exit
        self._metrics = self.stats.metrics
        self._selection = selection
        self._on_exhausted = on_exhausted
        self._clock = clock
        self._pending_commit = PendingCommit(owner, mailbox, store)
        self._memory_retry = OutOfMemoryRetry(clock)
        self._policy = Policy()
        self._ended: list[Record] = []
        self._stepped: list[BatchEntry] = []

    @property
    def policy(self) -> Policy:
        """Return the policy that is followed."""
        return self._policy

    @property
    def stepped(self) -> Listed[BatchEntry]:
        """Return the last step's entries."""
        return self._stepped

    def follow(self, pool: DrafterPool, policy: Policy) -> None:
        """Ask these drafters and keep to this policy from now on.

        For any thread: two references are swapped, neither object is changed. A step under way may
        see the old one of one and the new one of the other, which costs time at most.
        """
        self.speculation.follow(pool)
        self._policy = policy

    def report(self) -> dict[str, object]:
        """Describe the verifier for its heartbeat. For any thread."""
        errors = {"step": self._costs.error.value, "drafts": self.speculation.pending.error.value}
        return {**self.stats.report(self.sequences.all()), "cost_errors": errors}

    def load(self) -> VerifierLoad:
        """Describe its load for the controller. For any thread."""
        return self.stats.load(self.sequences.all())

    def has_mail(self) -> bool:
        """Tell whether mail waited at the last commit; True where that is not known."""
        return self._pending_commit.mail() != 0

    def take_ended(self) -> list[Record]:
        """Take the records of the sequences that ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def adopt(self, request_ids: Iterable[str]) -> None:
        """Run requests that are this owner's by the store; others are left alone."""
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
        """Drop sequences that this owner has lost: cancelled, or taken over by another verifier."""
        for request_id in request_ids:
            sequence = self._stop(request_id)
            if sequence is not None:
                self._record_left(sequence, FinishReason.CANCELLED)

    def receive(self, trees: Iterable[TreeMessage]) -> None:
        """Receive fused drafts."""
        for tree in trees:
            self.speculation.receive(tree)

    def wait_s(self, now_s: float) -> float | None:
        """Return the seconds until a sequence can go on: 0 if one can now, None if there is none.

        They are never longer than the policy's wait, though the clock may have been put back.
        """
        sequences = self.sequences.oldest()
        self.speculation.limit_waits(sequences, now_s + self._policy.draft_wait_s)
        return wait_s(sequences, now_s, self.speculation.is_together, self._policy.apart_tokens)

    def step(self, now_s: float) -> list[DraftJob]:
        """Run one batch, if any sequence is ready, and commit it; return the jobs for drafts."""
        began_s = self._clock.perf_counter()
        jobs = self._settle()
        works = self._stepped = self._compose(now_s)
        if not works:
            return jobs
        reading_s = _reading_s(works, self._costs)
        self._metrics.record_started((self._sequence(work).record for work in works), self._clock.time())
        self._early_exit.allow(works, self._costs, is_wanted=self._policy.pruning)
        started = self._clock.perf_counter()
        try:
            verdicts = verify(works, self.target.forward(works))
        except Exception as error:  # one request's failure must not end the others
            return jobs + self._isolate(works, error)
        took_s = self._clock.perf_counter() - started
        self._early_exit.update(works, verdicts, self._costs)
        rows = sum(len(work.tokens) + len(work.tree) for work in works)
        is_whole = all(work.final for work in works)
        if is_whole:
            self._costs.correct(rows, self._early_exit.whole_s(works, self._costs, took_s), reading_s)
        jobs += self._commit(works, verdicts, rows, took_s)
        if is_whole:
            trees = sum(len(work.tree) > 0 for work in works)
            self.speculation.record_host(len(works), trees, self._clock.perf_counter() - began_s - took_s)
        return jobs

    def _compose(self, now_s: float) -> list[BatchEntry]:
        """Compose the next batch, with memory reserved."""
        sequences, is_together = self.sequences.oldest(), self.speculation.is_together
        self.sequences.adopt_prefixes(sequences)
        batch = compose(
            sequences,
            self._policy,
            now_s,
            self._costs,
            self.sequences.suspects,
            is_together,
            self._selection,
        )
        return self.sequences.reserve(batch)

    def _commit(
        self, works: list[BatchEntry], verdicts: list[Verdict | None], rows: int, took_s: float
    ) -> list[DraftJob]:
        """Send the commit, and go on as if it succeeded; `_settle` reads the outcomes."""
        now_s = self._clock.time()
        final: list[tuple[BatchEntry, Verdict, Event]] = []
        for work, verdict in zip(works, verdicts, strict=True):
            if verdict is None:
                self.target.cover(work.sequence, work.start + len(work.tokens))
            else:
                final.append((work, verdict, conclude(self._sequence(work), work.tree, verdict, now_s)))
        rounds = [VerifiedTree(work.tree, verdict.path, len(event.tokens)) for work, verdict, event in final]
        self._metrics.record_step(len(works), rows, took_s, rounds)
        try:
            self._pending_commit.send([(self._sequence(work), event) for work, _, event in final])
        except Exception:
            for work, _, _ in final:
                self.target.drop(work)
            raise
        for work, verdict, event in final:
            self._advance(work, verdict, event)
        going_on = [self._sequence(work) for work, _, event in final if event.finish_reason is None]
        jobs = self.speculation.request_drafts(going_on, self._policy)
        return jobs if len(going_on) == len(final) else jobs + self._settle()

    def _settle(self) -> list[DraftJob]:
        """Read the last commit's outcomes; drop sequences that ended or are lost."""
        jobs: list[DraftJob] = []
        for sequence, event, outcome in self._pending_commit.settle():
            if outcome is Outcome.COMMITTED:
                self._metrics.record_committed(sequence.record, event)
                if event.finish_reason is not None:
                    tokens, rounds = event.offset + len(event.tokens), event.stats.rounds
                    log.info(
                        "%s: %d tokens, %d rounds", event.finish_reason, tokens, rounds, extra=of(sequence.record.id)
                    )
            elif self._runs(sequence):
                log.info("commit %s, letting go", outcome, extra=of(sequence.record.id))
                self._metrics.record_left(sequence.record, event.offset, sequence.stats, FinishReason.CANCELLED)
            if outcome is not Outcome.COMMITTED or event.finish_reason is not None:
                jobs += self._end(sequence)
        return jobs

    def _end(self, sequence: Sequence) -> list[DraftJob]:
        """Drop a sequence that is over here; return the last jobs for its replicas."""
        if not self._runs(sequence):
            return []  # released since then
        jobs = self.speculation.final_jobs(sequence)
        self._stop(sequence.record.id)
        self._ended.append(sequence.record)
        return jobs

    def _stop(self, request_id: str) -> Sequence | None:
        """Remove all that is known of a request."""
        sequence = self.sequences.stop(request_id)
        self.speculation.remove(request_id)
        self._memory_retry.remove(request_id)
        return sequence

    def _sequence(self, work: BatchEntry) -> Sequence:
        return self.sequences[work.sequence.id]

    def _runs(self, sequence: Sequence) -> bool:
        return self.sequences.get(sequence.record.id) is sequence

    def _advance(self, work: BatchEntry, verdict: Verdict, event: Event) -> None:
        sequence = self._sequence(work)
        self.stats.record_verified(work.tree, verdict.path)
        self.speculation.record_verdict(sequence, event.tokens)
        self.target.accept(work, verdict.path)
        sequence.kv.tokens += event.tokens
        sequence.stats = event.stats
        sequence.kv.state = verdict.state if len(event.tokens) == len(verdict.tokens) else None
        self.sequences.clear(sequence.record.id)
        self._memory_retry.remove(sequence.record.id)

    def _isolate(self, works: list[BatchEntry], error: Exception) -> list[DraftJob]:
        """Run a failed step's sequences one by one, until the one at fault fails alone."""
        log.exception("a step of %d sequences failed", len(works))
        self._metrics.record_failed()
        for work in works:
            self.target.invalidate(work)
            self.sequences.suspect(work.sequence.id)
        if len(works) > 1 or self._memory_retry.may_try_again(works[0].sequence.id, error):
            return []
        if self._on_exhausted is not None and is_out_of_memory(error):
            self._on_exhausted()
            return []
        sequence = self._sequence(works[0])
        with suppress(NotFound):
            self._store.end(sequence.record.id, FinishReason.ERROR, f"the target failed on this request: {error}")
        self._record_left(sequence, FinishReason.ERROR)
        return self._end(sequence)

    def _record_left(self, sequence: Sequence, reason: FinishReason) -> None:
        self._metrics.record_left(sequence.record, sequence.generated, sequence.stats, reason)


def _reading_s(works: Listed[BatchEntry], costs: StepCosts) -> float:
    """Return the expected seconds of reading the contexts of these entries."""
    reading = costs.reading
    return sum(reading.seconds(work.start, len(work.tokens) + len(work.tree)) for work in works)

"""Record a verifier's events for metrics and timelines. The thread that runs steps only records; the heartbeat's
counts.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Listed
from dataclasses import dataclass
from itertools import chain
from typing import Any

from app.counters import Counters
from app.messages import Event, FinishReason, Record, Stats
from app.metrics import (
    ACCEPTED,
    ACCEPTED_LENGTH,
    ASKED,
    AT_LOAD,
    BATCH,
    DEEPEST,
    DRAFT_DEPTH,
    DRAFTED,
    DRAFTED_AT_LOAD,
    ENDED,
    FIRST_TOKEN,
    PACKED,
    PER_TOKEN,
    PROMPT_TOKENS,
    QUEUE_WAIT,
    REUSED_TOKENS,
    ROUNDS_DRAFTED,
    SEQUENCES,
    STEP,
    STEP_ERRORS,
    TOKENS,
    TREE,
)
from app.round_observer import AskedDraft, RoundObserver, VerifiedStep
from app.state import Sequence, Tree

MOST_EVENTS = 16_384  # far more than a heartbeat's period can hold
MOST_REQUESTS = 64


@dataclass(slots=True)
class RequestProgress:
    """A request's progress, for its timeline and trace, in seconds of the wall clock."""

    record: Record
    started_s: float | None = None  # its first step here
    tokens: int = 0
    stats: Stats = Stats()
    reason: FinishReason | None = None

    @property
    def created_s(self) -> float:
        return self.record.created_s


class VerifierMetrics(RoundObserver):
    """The events of one verifier; without `counters` none is kept."""

    def __init__(self, counters: Counters | None = None) -> None:
        self._counters = counters or Counters()
        self._events = deque[tuple[Callable[..., None], tuple[Any, ...]]](maxlen=MOST_EVENTS if counters else 0)
        self._fresh: set[str] = set()  # taken over, and in no step yet
        self._progress: OrderedDict[str, RequestProgress] = OrderedDict()
        self._started: dict[str, float] = {}  # by request that runs: its first step's time

    def beat(self) -> None:
        """Count the recorded events. For the heartbeat's thread."""
        while self._events:
            count, facts = self._events.popleft()
            count(*facts)

    def close(self) -> None:
        self.beat()

    def record_adopted(self, record: Record, is_new: bool) -> None:
        """`is_new`: nothing of it is committed."""
        self._record(self._count_prompt, len(record.prompt_ids))
        if is_new:
            self._fresh.add(record.id)

    def record_reused(self, tokens: int) -> None:
        if tokens:
            self._record(self._count_by, REUSED_TOKENS, tokens)

    def on_start(self, sequences: Iterable[Sequence], now_s: float) -> None:
        if self._fresh:
            for sequence in sequences:
                record = sequence.record
                if record.id in self._fresh:
                    self._fresh.discard(record.id)
                    self._record(self._count_begun, record, now_s)

    def on_failure(self) -> None:
        self._record(self._count_by, STEP_ERRORS, 1)

    def on_asked(self, asked: Listed[AskedDraft]) -> None:
        self._record(self._count_asked, [draft.drafters for draft in asked])

    def on_trees(self, trees: int, came_s: float, waited_s: float) -> None:
        self._record(self._count_trees, waited_s, trees)

    def on_step(self, step: VerifiedStep, host_s: float) -> None:
        rounds = [(one.entry.tree, one.verdict.path, len(one.tokens)) for one in step.rounds]
        self._record(self._count_step, len(step.entries), step.rows, step.took_s, rounds)

    def on_commit(self, sequence: Sequence, event: Event) -> None:
        self._record(self._count_committed, sequence.record, event)

    def on_left(self, sequence: Sequence, tokens: int, reason: FinishReason) -> None:
        record = sequence.record
        self._fresh.discard(record.id)
        self._record(self._count_left, record, tokens, sequence.stats, reason)

    def drain(self) -> dict[str, RequestProgress]:
        """Take the progress changed since the last call, by request. For the heartbeat's thread.

        Above the bound the oldest changes are dropped.
        """
        self.beat()
        progress, self._progress = self._progress, OrderedDict()
        return progress

    def _record(self, count: Callable[..., None], *facts: Any) -> None:
        self._events.append((count, facts))

    def _count_by(self, metric: Any, by: int) -> None:
        self._counters.count(metric, by=by)

    def _count_prompt(self, tokens: int) -> None:
        self._counters.count(PROMPT_TOKENS, by=tokens)

    def _count_begun(self, record: Record, now_s: float) -> None:
        self._counters.observe(QUEUE_WAIT, max(0.0, now_s - record.created_s), "start")
        self._started[record.id] = now_s
        self._of(record)

    def _count_step(
        self, sequences: int, rows: int, took_s: float, rounds: Listed[tuple[Tree, list[int], int]]
    ) -> None:
        counters = self._counters
        counters.observe(STEP, took_s)
        counters.observe(BATCH, sequences)
        counters.observe(PACKED, rows)
        drafted, accepted = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
        for tree, path, committed in rounds:
            counters.observe(ACCEPTED_LENGTH, committed)
            _add_draft(tree, frozenset(path[:committed]), drafted, accepted)
        for metric, counts in ((DRAFTED, drafted), (ACCEPTED, accepted)):
            for (drafter, position), count in counts.items():
                counters.count(metric, drafter, str(position), by=count)
        if rounds:
            counters.count(ROUNDS_DRAFTED, by=sum(1 for tree, _, _ in rounds if tree.tokens))
            counters.count(DRAFT_DEPTH, by=sum(max(tree.depths()) for tree, _, _ in rounds))
            counters.count(AT_LOAD, _load(sequences), by=len(rounds))
            counters.count(DRAFTED_AT_LOAD, _load(sequences), by=sum(len(tree) for tree, _, _ in rounds))

    def _count_committed(self, record: Record, event: Event) -> None:
        counters, stats = self._counters, event.stats
        for proposer, count in Counter(event.proposers).items():
            counters.count(TOKENS, proposer, by=count)
        if event.offset == 0 and event.tokens and stats.first_token_s is not None:
            counters.observe(FIRST_TOKEN, max(0.0, stats.first_token_s - record.created_s))
        progress = self._of(record)
        progress.tokens, progress.stats, progress.reason = event.offset + len(event.tokens), stats, event.finish_reason
        if event.finish_reason is not None:
            self._started.pop(record.id, None)
            counters.count(ENDED, event.finish_reason)
            if progress.tokens > 1 and stats.first_token_s is not None and stats.last_token_s is not None:
                counters.observe(PER_TOKEN, max(0.0, stats.last_token_s - stats.first_token_s) / (progress.tokens - 1))

    def _count_asked(self, drafters: Listed[tuple[str, ...]]) -> None:
        for drafter, count in Counter(chain.from_iterable(drafters)).items():
            self._counters.count(ASKED, drafter, by=count)

    def _count_trees(self, took_s: float, trees: int) -> None:
        for _ in range(trees):
            self._counters.observe(TREE, took_s)

    def _count_left(self, record: Record, tokens: int, stats: Stats, reason: FinishReason) -> None:
        progress = self._of(record)
        progress.tokens, progress.stats, progress.reason = tokens, stats, reason
        self._started.pop(record.id, None)

    def _of(self, record: Record) -> RequestProgress:
        progress = self._progress.setdefault(record.id, RequestProgress(record, self._started.get(record.id)))
        while len(self._progress) > MOST_REQUESTS:
            self._progress.popitem(last=False)
        return progress


def _add_draft(
    tree: Tree, right: frozenset[int], drafted: Counter[tuple[str, int]], accepted: Counter[tuple[str, int]]
) -> None:
    for node, (depth, proposers) in enumerate(zip(tree.depths()[1:], tree.proposers, strict=True), start=1):
        for drafter in proposers:
            drafted[drafter, min(DEEPEST, depth)] += 1
            if node in right:
                accepted[drafter, min(DEEPEST, depth)] += 1


def _load(sequences: int) -> str:
    return str(int(next((bound for bound in SEQUENCES if sequences <= bound), SEQUENCES[-1])))

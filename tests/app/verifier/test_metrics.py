"""A verifier's metrics agree with its requests' own statistics."""

import time
from collections import Counter

import pytest

from app.counters import Counters, series
from app.messages import Event, FinishReason
from app.metrics import GROUP
from app.round_observer import VerifiedStep
from app.verifier.metrics import RequestProgress, VerifierMetrics
from tests import fakes
from tests.fakes import Book, characters, record

PLAIN, RUNNER = fakes.tiny(), fakes.served()
PROMPTS = [[(i * 7 + salt) % 50 for i in range(10 + 9 * salt)] for salt in range(3)]
LONG = 24


class Counted:
    """Three requests, run side by side with drafters that are right, half right, or right on a side branch."""

    def __init__(self) -> None:
        book, counters = Book(), Counters()
        self.meter = VerifierMetrics(counters)
        drafters = [characters(book)[name] for name in ("oracle", "half", "shy")]
        self.local = fakes.pipeline(RUNNER, drafters, metrics=self.meter)
        now_s = time.time()
        self.records = [record(p, LONG, request_id=f"r{i}", created_s=now_s) for i, p in enumerate(PROMPTS)]
        for one in self.records:
            book.write(one, fakes.alone(PLAIN, one.prompt_ids, LONG))
        fakes.submit(self.local, *self.records)
        fakes.finish(self.local)
        self.progress = self.meter.drain()
        found = {series(name): added for name, (_, added) in counters.changes(GROUP).items()}
        self.sums = {key: added for key, added in found.items() if key is not None}
        self.events: list[Event] = [e for one in self.records for e in self.local.store.events(one.id, 0)]
        self.stats = [self.local.store.snapshot(one.id).stats for one in self.records]

    def by_label(self, name: str) -> Counter[str]:
        found: Counter[str] = Counter()
        for (metric, labels), (value, *_) in self.sums.items():
            if metric == name:
                found[labels[0]] += int(value)
        return found

    def histogram(self, name: str, *labels: str) -> tuple[int, float]:
        """Return the number of values, and their sum."""
        *counts, total = self.sums[name, labels]
        return int(sum(counts)), total


@pytest.fixture(scope="module")
def counted() -> Counted:
    return Counted()


def test_tokens_by_proposer_and_the_ends(counted: Counted) -> None:
    assert counted.by_label("tokens_committed") == Counter(p for event in counted.events for p in event.proposers)
    assert sum(counted.by_label("tokens_committed").values()) == len(PROMPTS) * LONG
    assert counted.by_label("requests_ended") == {"length": len(PROMPTS)}
    assert counted.sums["prompt_tokens", ()] == [sum(map(len, PROMPTS))]


def test_drafted_and_accepted_by_drafter(counted: Counted) -> None:
    drafted, accepted = Counter[str](), Counter[str]()
    for stats in counted.stats:
        for name, own in stats.by_drafter.items():
            drafted[name] += own.drafted
            accepted[name] += own.accepted
    assert counted.by_label("draft_tokens_verified") == drafted
    assert +counted.by_label("draft_tokens_accepted") == +accepted and accepted["shy"] > 0
    # the oracle is right wherever the tree reaches; `half` is wrong from its third token on
    assert ("draft_tokens_verified", ("half", "3")) in counted.sums
    assert ("draft_tokens_accepted", ("half", "3")) not in counted.sums
    assert counted.sums["draft_tokens_accepted", ("half", "2")][0] > 0


def test_rounds_and_steps(counted: Counted) -> None:
    rounds = sum(stats.rounds for stats in counted.stats)
    assert counted.histogram("accepted_length_tokens") == (rounds, len(PROMPTS) * LONG)
    assert sum(counted.by_label("rounds_at_load").values()) == rounds
    drafted = sum(stats.drafted for stats in counted.stats)
    assert sum(counted.by_label("draft_tokens_at_load").values()) == drafted
    in_a_row = counted.sums["draft_depth_tokens", ()][0]
    assert counted.sums["rounds_drafted", ()][0] < in_a_row < drafted  # trees have side branches
    steps, sequences = counted.histogram("step_sequences")
    assert counted.histogram("step_seconds")[0] == steps == counted.histogram("step_packed_tokens")[0]
    assert sequences >= rounds and steps < rounds  # some steps had several sequences


def test_times_of_requests(counted: Counted) -> None:
    assert counted.histogram("first_token_seconds")[0] == len(PROMPTS)
    count, seconds = counted.histogram("per_token_seconds")
    spans = [s.last_token_s - s.first_token_s for s in counted.stats if s.last_token_s and s.first_token_s]
    assert (count, seconds) == (len(PROMPTS), pytest.approx(sum(spans) / (LONG - 1)))
    assert counted.histogram("queue_wait_seconds", "start")[0] == len(PROMPTS)


def test_progress_of_each_request(counted: Counted) -> None:
    for one, stats in zip(counted.records, counted.stats, strict=True):
        progress = counted.progress[one.id]
        assert (progress.tokens, progress.stats, progress.reason) == (LONG, stats, FinishReason.LENGTH)
        assert progress.started_s is not None and progress.created_s <= progress.started_s <= time.time()
    assert counted.meter.drain() == {}


def test_progress_of_a_released_request() -> None:
    meter, one = VerifierMetrics(Counters()), record([1, 2], max_tokens=9)
    meter.record_adopted(one, is_new=True)
    sequence = fakes.sequence([1])
    sequence.record = one
    meter.on_left(sequence, 4, FinishReason.CANCELLED)
    assert meter.drain() == {one.id: RequestProgress(one, None, 4, fakes.sequence([1]).stats, FinishReason.CANCELLED)}


@pytest.mark.parametrize("way", ["cancelled", "let go", "failed", "done"])
def test_nothing_is_kept_of_a_request_that_left(way: str) -> None:
    meter = VerifierMetrics(Counters())
    local = fakes.pipeline(fakes.served(), metrics=meter)
    fakes.submit(local, one := record([1, 2, 3], max_tokens=2 if way == "done" else 40))
    local.verifier.adopt([one.id])
    if way != "let go":  # without it it is so before its first step
        local.step()
        assert meter.drain()[one.id].started_s is not None
    if way == "cancelled":  # its verifier hears of it by a commit
        local.store.end(one.id, FinishReason.CANCELLED)
    elif way == "let go":
        local.verifier.release([one.id])
    elif way == "failed":
        local.verifier.target.launch = _fail  # type: ignore[method-assign]
    for _ in range(5):
        local.step()
    reasons = {"done": FinishReason.LENGTH, "failed": FinishReason.ERROR}
    assert meter.drain()[one.id].reason is reasons.get(way, FinishReason.CANCELLED)
    assert (meter._started, meter._fresh, len(meter._events)) == ({}, set(), 0)


def _fail(works: object) -> None:
    raise ValueError("the target fails")


def test_without_counters_nothing_is_kept() -> None:
    meter = VerifierMetrics()
    meter.on_step(VerifiedStep([], [], 1, 0.1), host_s=0.0)
    assert not meter._events

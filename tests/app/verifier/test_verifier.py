"""Test a verifier over a tiny model: commits, waits, retries and drops."""

import dataclasses
import time

import pytest
import torch

from app.assembly.devices import CHUNK_TOKENS
from app.assembly.verifier import verifier_over
from app.config import Settings
from app.drafter.model import ModelDrafter
from app.engine.cpu.choose_forward import choose_forward
from app.engine.drafters.guesser import ModelGuesser
from app.engine.target import StepOnCollect
from app.errors import StoreUnavailable, TargetLost
from app.messages import TARGET, Event, FinishReason, Status
from app.pipeline import LocalPipeline
from app.policy import Policy
from app.request import Sampling, SpeculationBounds
from app.speculation.drafter_pool import DrafterPool
from app.store.memory import MemoryStore
from app.store.protocol import Outcome
from app.verifier import memory
from tests import fakes
from tests.fakes import PAGE_TOKENS, Book, characters, record

PLAIN = fakes.tiny()
RUNNER = fakes.served()
PROMPTS = [[(i * 7 + salt) % 50 for i in range(10 + 9 * salt)] for salt in range(4)]
POISON = 57  # not among the tokens that a model is checked with at load


@pytest.fixture(autouse=True)
def _all_pages_come_back():
    yield
    assert RUNNER.pool.num_free == RUNNER.pool.num_pages


def expected(prompt: list[int], max_tokens: int) -> list[int]:
    return fakes.alone(PLAIN, prompt, max_tokens)


def speculating(*names: str, **how) -> tuple[LocalPipeline, Book]:
    """Make a pipeline with drafters of these behaviours, and the book that they read."""
    book = Book()
    return fakes.pipeline(how.pop("target", RUNNER), [characters(book)[name] for name in names], **how), book


class CountingGuesser(ModelGuesser):
    """A guesser that counts the rows that it reads."""

    rows = 0

    def guess(self, works, depth, floor):
        self.rows += sum(len(work.tokens) for work in works)
        return super().guess(works, depth, floor)


def test_only_own_active_requests_are_adopted_each_once():
    local, _ = speculating()
    for name, owner in (("mine", "owner"), ("theirs", "other"), ("ended", "owner")):
        local.store.create(record(PROMPTS[0], 4, request_id=name), limit=9)
        local.store.assign(name, owner)
    local.store.end("ended", FinishReason.CANCELLED)
    for _ in range(2):
        local.verifier.adopt(["mine", "theirs", "ended", "unheard of"])
    assert list(local.verifier.sequences) == ["mine"]
    local.store.end("theirs", FinishReason.CANCELLED)
    fakes.finish(local)
    local.verifier.adopt(["mine"])
    assert local.verifier.sequences == {}


def test_without_drafters_a_step_commits_one_token_of_each():
    local, _ = speculating()
    records = [record(prompt, 3, request_id=f"r{i}") for i, prompt in enumerate(PROMPTS)]
    fakes.submit(local, *records)
    for count in (1, 2, 3):
        local.step()
        assert [len(local.store.snapshot(one.id).tokens) for one in records] == [count] * 4


def test_a_right_draft_is_committed_in_one_step():
    local, book = speculating("oracle")
    one = record(PROMPTS[0], 9)
    book.write(one, expected(PROMPTS[0], 9))
    fakes.submit(local, one)
    local.step()
    local.step()
    snapshot = local.store.snapshot(one.id)
    assert list(snapshot.tokens) == expected(PROMPTS[0], 9)
    assert (snapshot.stats.rounds, snapshot.stats.drafted, snapshot.stats.accepted) == (2, 7, 7)
    events = local.store.events(one.id, 0)
    assert events[1].proposers == ("oracle",) * 7 + (TARGET,)
    assert [one.id for one in local.verifier.take_ended()] == [one.id]


def test_a_sequence_waits_for_its_tree_until_it_is_due():
    local, _ = speculating("oracle")
    fakes.submit(local, record(PROMPTS[0], 9))
    verifying = local.verifier
    (asked,) = verifying.step(0.0)
    assert verifying.step(asked.due_s - 0.1) == []
    assert verifying.wait_s(asked.due_s - 0.1) == pytest.approx(0.1)
    assert verifying.sequences["r"].generated == 1
    verifying.step(asked.due_s)
    assert verifying.sequences["r"].generated == 2
    fakes.finish(local)


def test_a_stale_tree_is_not_waited_for_nor_verified():
    local, book = speculating("oracle")
    one = record(PROMPTS[0], 9)
    book.write(one, expected(PROMPTS[0], 9))
    fakes.submit(local, one)
    (asked,) = local.verifier.step(0.0)
    local.verifier.step(asked.due_s)
    local.verifier.receive(local.draft([asked]))
    assert local.verifier.sequences["r"].tree is None
    fakes.finish(local)


@pytest.mark.parametrize("outcome", [Outcome.STALE, Outcome.FENCED, Outcome.ENDED])
def test_a_sequence_that_the_owner_lost_is_dropped(outcome):
    is_dead = []
    store = MemoryStore(is_alive=lambda owner: owner not in is_dead)
    local, book = speculating("shy", store=store)
    gone, stays = record(PROMPTS[0], 12, request_id="gone"), record(PROMPTS[1], 12, request_id="stays")
    for one in (gone, stays):
        book.write(one, expected(list(one.prompt_ids), 12))
    fakes.submit(local, gone, stays)
    local.step()
    assert local.verifier.sequences["gone"].tree.parents[:2] == [0, 0], "side branches are in flight"
    text = expected(PROMPTS[0], 12)
    if outcome is Outcome.STALE:
        store.commit("owner", [("gone", Event(offset=1, tokens=(text[1],), proposers=(TARGET,)))])
    elif outcome is Outcome.FENCED:
        is_dead.append("owner")
        store.assign("gone", "other")
    else:
        store.end("gone", FinishReason.CANCELLED)
    local.verifier.step(float("inf"))
    jobs = local.verifier.step(float("inf"))  # hears what became of the last one's commit
    assert "gone" not in local.verifier.sequences
    assert [one.id for one in local.verifier.take_ended()] == ["gone"]
    assert [one.request_id for one in jobs if one.is_last] == ["gone"]
    held = [page for s in local.verifier.sequences.values() for page in s.kv.pages]
    assert RUNNER.pool.num_free == RUNNER.pool.num_pages - len(held), "the tree's pages came back too"
    if outcome is Outcome.FENCED:
        is_dead[:] = ["other"]
        store.assign("gone", "owner")
    local.verifier.adopt(["gone"])
    fakes.finish(local)
    assert list(store.snapshot("stays").tokens) == expected(PROMPTS[1], 12)
    if outcome is not Outcome.ENDED:
        assert list(store.snapshot("gone").tokens) == text, "another verifier commits the same"


def test_a_fenced_commit_does_not_touch_a_sequence_adopted_since():
    is_dead = {"owner"}
    store = MemoryStore(is_alive=lambda owner: owner not in is_dead)
    local, _ = speculating(store=store)
    fakes.submit(local, record(PROMPTS[0], 6))
    local.step()
    store.assign("r", "other")
    local.step()  # sends a commit that is fenced
    local.verifier.release(["r"])
    is_dead.add("other")
    store.assign("r", "owner")
    local.verifier.adopt(["r"])
    anew = local.verifier.sequences["r"]
    local.step()  # hears of it
    assert local.verifier.sequences["r"] is anew and not local.verifier.take_ended()
    fakes.finish(local)
    assert list(store.snapshot("r").tokens) == expected(PROMPTS[0], 6)
    assert [one.id for one in local.verifier.take_ended()] == ["r"]


def test_a_store_that_does_not_answer_costs_a_step_and_no_memory():
    class Failing(MemoryStore):
        fails = False

        def commit(self, owner, events):
            if self.fails:
                raise StoreUnavailable("gone for a while")
            return super().commit(owner, events)

    store = Failing()
    local, book = speculating("shy", store=store)
    one = record(PROMPTS[0], 12)
    book.write(one, expected(PROMPTS[0], 12))
    fakes.submit(local, one)
    local.step()
    store.fails = True
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            local.step()
    store.fails = False
    fakes.finish(local)
    assert list(store.snapshot("r").tokens) == expected(PROMPTS[0], 12)


@pytest.mark.parametrize("error", [RuntimeError, MemoryError, IndexError, ValueError, ZeroDivisionError])
def test_a_request_on_which_the_target_fails_ends_alone(error, monkeypatch):
    monkeypatch.setattr(memory, "PATIENCE_S", 0.2)  # without memory it is tried again for a while
    local, book = speculating("shy", target=Fragile(error))
    records = [record(prompt, 8, request_id=f"r{i}") for i, prompt in enumerate(PROMPTS)]
    poison = record([1, POISON, 2], 8, request_id="poison")
    for one in records:
        book.write(one, expected(list(one.prompt_ids), 8))
    fakes.submit(local, *records[:2])
    local.step()
    fakes.submit(local, poison, *records[2:])
    fakes.finish(local)
    snapshot = local.store.snapshot("poison")
    assert (snapshot.status, snapshot.finish_reason) == (Status.FAILED, FinishReason.ERROR)
    assert "the target failed on this request" in snapshot.error
    for one in records:
        snapshot = local.store.snapshot(one.id)
        assert (snapshot.status, snapshot.error) == (Status.DONE, None)
        assert list(snapshot.tokens) == expected(list(one.prompt_ids), 8)
    assert sorted(one.id for one in local.verifier.take_ended()) == ["poison", "r0", "r1", "r2", "r3"]
    assert not local.verifier.sequences.suspects


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("could not create a primitive"),
    ],
)
def test_a_batch_without_memory_is_split_and_retried(error, monkeypatch):
    monkeypatch.setattr(memory, "PAUSE_S", 0.0)
    local, book = speculating("shy", target=(starved := Starved(error)))
    records = [record(prompt, 8, request_id=f"r{i}") for i, prompt in enumerate(PROMPTS)]
    for one in records:
        book.write(one, expected(list(one.prompt_ids), 8))
    fakes.submit(local, *records)
    local.step()
    starved.steps = 12
    fakes.finish(local)
    assert starved.steps == 0 and 1 in starved.sizes and max(starved.sizes) > 1
    for one in records:
        snapshot = local.store.snapshot(one.id)
        assert (snapshot.status, list(snapshot.tokens)) == (Status.DONE, expected(list(one.prompt_ids), 8))


def test_a_lasting_lack_of_memory_is_reported_without_an_error(monkeypatch):
    monkeypatch.setattr(memory, "PATIENCE_S", 0.0)
    starved, exhausted = Starved(MemoryError()), []
    local, book = speculating("shy", target=starved, on_lost=lambda _: exhausted.append(starved.steps))
    book.write(one := record(PROMPTS[0], 8), expected(PROMPTS[0], 8))
    fakes.submit(local, one)
    starved.steps = 2
    fakes.finish(local)
    assert exhausted and list(local.store.snapshot("r").tokens) == expected(PROMPTS[0], 8)


def test_a_target_that_runs_no_more_steps_is_reported_at_once_without_an_error():
    broken, lost = Starved(TargetLost("gone")), []
    local, book = speculating("shy", target=broken, on_lost=lost.append)
    records = [record(prompt, 8, request_id=str(i)) for i, prompt in enumerate(PROMPTS[:2])]
    for one in records:
        book.write(one, expected(list(one.prompt_ids), 8))
    broken.steps = 1
    assert fakes.texts(local, *records) == [expected(list(one.prompt_ids), 8) for one in records]
    assert [str(error) for error in lost] == ["gone"]


def test_a_request_that_is_adopted_again_is_retried_anew(monkeypatch):
    monkeypatch.setattr(memory, "PATIENCE_S", 0.2)
    starved, exhausted = Starved(MemoryError()), []
    local, book = speculating("shy", target=starved, on_lost=lambda _: exhausted.append(one))
    book.write(one := record(PROMPTS[0], 8), expected(PROMPTS[0], 8))
    fakes.submit(local, one)
    starved.steps = 2
    local.step()
    local.verifier.release(["r"])
    time.sleep(0.25)
    local.verifier.adopt(["r"])
    fakes.finish(local)
    assert not exhausted and starved.steps == 0


def test_another_failure_ends_the_request_and_reports_no_memory():
    exhausted = []
    local, _ = speculating(target=Fragile(RuntimeError), on_lost=lambda _: exhausted.append("verifier"))
    poison, good = record([1, POISON, 2], 8, request_id="poison"), record(PROMPTS[0], 8, request_id="good")
    assert fakes.texts(local, poison, good) == [[], expected(PROMPTS[0], 8)]
    assert not exhausted and local.store.snapshot("poison").status is Status.FAILED


def test_waits_keep_the_policys_bound_when_the_clock_is_put_back():
    local, book = speculating("shy")
    one = record(PROMPTS[0], 12)
    book.write(one, expected(PROMPTS[0], 12))
    fakes.submit(local, one)
    (asked,) = local.verifier.step(0.0)
    long_ago_s = asked.due_s - 3600.0
    assert local.verifier.wait_s(long_ago_s) <= local.verifier.policy.draft_wait_s
    fakes.finish(local)


def test_a_request_whose_logits_are_not_numbers_ends_alone():
    local, _ = speculating(target=NotANumber())
    good = record(PROMPTS[0], 5, request_id="good", sampling=Sampling(temperature=0.5, seed=1))
    poison = record([POISON, 2], 5, request_id="poison", sampling=Sampling(temperature=0.5, top_p=0.9, seed=1))
    alone, _ = speculating()
    assert fakes.texts(local, good, poison) == [*fakes.texts(alone, good), []]
    assert local.store.snapshot("poison").status is Status.FAILED


@pytest.mark.parametrize("prompt_length", [3, 40])
def test_overflowing_numbers_do_not_reach_later_sequences(prompt_length):
    """A slot that is NaN makes every sum over its page NaN, masked or not."""
    model = fakes.tiny()
    with torch.no_grad():
        model.model.embed_tokens.weight[POISON] = torch.inf
    local, _ = speculating(target=fakes.runner(choose_forward(model), pages=8))
    poison = record([POISON] * prompt_length, 5, request_id="poison")
    beside, after = record(PROMPTS[1], 5, request_id="beside"), record(PROMPTS[3], 5, request_id="after")
    assert fakes.texts(local, poison, beside) == [[], expected(PROMPTS[1], 5)]
    assert local.store.snapshot("poison").status is Status.FAILED
    assert fakes.texts(local, after) == [expected(PROMPTS[3], 5)], "though it gets pages that were the poison's"


def test_a_suspect_runs_alone_until_it_has_committed():
    batches = []

    class Watched(Relay):
        def forward(self, works):
            batches.append(sorted(work.sequence.id for work in works))
            return super().forward(works)

    store = MemoryStore(is_alive=lambda owner: owner != "dead")
    local, _ = speculating(target=Watched(), store=store)
    store.create(record(PROMPTS[0], 3, request_id="suspect"), limit=9)
    store.assign("suspect", "dead")
    store.assign("suspect", "owner")
    fakes.submit(local, record(PROMPTS[1], 3, request_id="other"))
    local.verifier.adopt(["suspect"])
    fakes.finish(local)
    first = next(i for i, batch in enumerate(batches) if "suspect" in batch)
    assert batches[first] == ["suspect"]
    assert ["other", "suspect"] in batches[first + 1 :]


def test_a_released_request_leaves_nothing_behind():
    local, _ = speculating("random")
    fakes.submit(local, record(PROMPTS[0], 50))
    local.step()
    local.verifier.release(["r", "unheard of"])
    assert local.verifier.sequences == {}
    local.store.end("r", FinishReason.CANCELLED)


def test_at_most_max_sequences_run_at_once_and_all_get_their_turn():
    sizes = []

    class Watched(Relay):
        def forward(self, works):
            sizes.append(len(works))
            return super().forward(works)

    local, _ = speculating(target=Watched(), max_sequences=2)
    records = [record(PROMPTS[0], 2, request_id=f"r{i}", created_s=float(i)) for i in range(5)]
    assert fakes.texts(local, *records) == [expected(PROMPTS[0], 2)] * 5
    assert max(sizes) == 2


def test_long_prompts_are_read_beside_running_sequences():
    local, _ = speculating(policy=Policy(max_batch_tokens=32, prefill_chunk_tokens=16))
    short, long = record(PROMPTS[0], 12, request_id="short"), record(list(range(50)) * 2, 3, request_id="long")
    fakes.submit(local, short)
    local.step()
    fakes.submit(local, long)
    local.step()
    assert 0 < local.verifier.sequences["long"].cached < 100
    assert local.verifier.sequences["short"].generated == 2
    fakes.finish(local)
    assert list(local.store.snapshot("long").tokens) == expected(list(range(50)) * 2, 3)


def test_a_devices_chunk_is_the_least_that_a_step_reads():
    """On a GPU: fewer rows of a prompt take as long, and each step reads the weights again."""
    measured = dataclasses.replace(fakes.measured(RUNNER), chunk_tokens=CHUNK_TOKENS["cuda"])
    verifier = verifier_over(Settings().changed(routing="all"), measured, "local", MemoryStore(), owner="owner")
    assert verifier.policy.prefill_chunk_tokens == 2048, "before any policy comes, too"
    for given, kept in ((16, 2048), (256, 2048), (4096, 4096)):
        verifier.follow(DrafterPool(), Policy(version=3, prefill_chunk_tokens=given))
        assert verifier.policy == Policy(version=3, prefill_chunk_tokens=kept)


def test_after_a_pause_drafts_are_as_right_as_before():
    """Drafters catch up with the tokens of the pause, though they read only new ones."""
    guesser = CountingGuesser(RUNNER.model, None, kv_bytes=2**20, page_tokens=PAGE_TOKENS)
    local = fakes.pipeline(RUNNER, [ModelDrafter("twin", guesser, 512)])
    record = fakes.record(range(1, 9), 240, request_id="r")
    fakes.submit(local, record)

    def right(tokens: int, policy: Policy) -> tuple[int, float]:
        """Return the verified draft tokens of the next tokens under a policy, and the part that was right."""
        local.verifier.follow(local.verifier.speculation.pool, policy)
        before = local.store.snapshot("r")
        while len(local.store.snapshot("r").tokens) < len(before.tokens) + tokens:
            local.step()
        after = local.store.snapshot("r").stats
        drafted = after.drafted - before.stats.drafted
        return drafted, (after.accepted - before.stats.accepted) / max(1, drafted)

    steady = Policy(min_draft_tokens=4, max_draft_tokens=4)
    drafted, before = right(60, steady)
    assert drafted > 30 and before > 0.6, "it has the target's own weights; second guesses are wrong"
    assert right(60, Policy(max_draft_tokens=0)) == (0, 0.0)
    guesser.rows = 0
    assert right(10, steady)[1] == pytest.approx(before, abs=0.2)
    assert 60 < guesser.rows < 120, "what it missed, and what it guessed; not all from the beginning"
    assert right(60, steady)[1] == pytest.approx(before, abs=0.1)
    fakes.finish(local)
    assert local.store.snapshot("r").tokens == tuple(expected(list(range(1, 9)), 240))


def test_a_request_that_wants_no_speculation_gets_none():
    local, book = speculating("oracle")
    records = [
        record(PROMPTS[0], 6, request_id=f"r{i}", speculation=wish)
        for i, wish in enumerate(
            (SpeculationBounds(enabled=False), SpeculationBounds(drafters=("nobody",)), SpeculationBounds())
        )
    ]
    for one in records:
        book.write(one, expected(PROMPTS[0], 6))
    assert fakes.texts(local, *records) == [expected(PROMPTS[0], 6)] * 3
    assert [local.store.snapshot(one.id).stats.drafted > 0 for one in records] == [False, False, True]


class Relay:
    """A target in front of the tiny model."""

    capacity_tokens = RUNNER.capacity_tokens
    free_tokens = 0

    def try_reserve(self, work):
        return RUNNER.try_reserve(work)

    def release(self, sequence):
        RUNNER.release(sequence)

    def adopt(self, sequence):
        return RUNNER.adopt(sequence)

    def launch(self, works):
        return StepOnCollect(lambda: self.forward(works))

    def forward(self, works):
        return RUNNER.forward(works)

    def cover(self, sequence, tokens):
        RUNNER.cover(sequence, tokens)

    def accept(self, work, path):
        RUNNER.accept(work, path)

    def drop(self, work):
        RUNNER.drop(work)

    def invalidate(self, work):
        RUNNER.invalidate(work)


class Fragile(Relay):
    """A target on which one prompt makes a whole batch fail."""

    def __init__(self, error: type[Exception]) -> None:
        self._error = error

    def forward(self, works):
        if any(POISON in work.sequence.tokens[:2] for work in works):
            raise self._error("out of something")
        return super().forward(works)


class Starved(Relay):
    """A target that lacks memory for some steps."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.steps = 0
        self.sizes: list[int] = []

    def forward(self, works):
        if self.steps:
            self.steps -= 1
            self.sizes.append(len(works))
            raise self._error
        return super().forward(works)


class NotANumber(Relay):
    """A target that computes nonsense for one prompt."""

    def forward(self, works):
        logits = super().forward(works)
        for work, rows in zip(works, logits, strict=True):
            if rows is not None and POISON in work.sequence.tokens[:2]:
                rows.rows = torch.full_like(rows.rows, torch.nan)
        return logits


def test_the_poisoned_token_is_in_no_other_prompt():
    assert all(POISON not in prompt for prompt in PROMPTS)
    assert PAGE_TOKENS * RUNNER.pool.num_pages > 500

"""Test rounds whose commits go out beside the next step: nothing is lost, doubled or left behind."""

import pytest

from app.engine.cpu.choose_forward import choose_forward
from app.errors import StoreUnavailable
from app.messages import FinishReason, Status
from app.pipeline import LocalPipeline
from app.store.memory import MemoryStore
from tests import fakes

MODEL = choose_forward(fakes.tiny(seed=3))
PROMPTS = [[5, 6, 7], [9, 8, 7, 6], [11, 3, 11, 3, 11], [2, 2]]


def expected(prompt: list[int], max_tokens: int) -> list[int]:
    """Return the text of a request alone, step by step."""
    return fakes.texts(fakes.pipeline(fakes.runner(MODEL)), fakes.record(prompt, max_tokens))[0]


def overlapped(store: MemoryStore | None = None, *, is_early: bool = True) -> LocalPipeline:
    """Build a pipeline whose steps are launched ahead: they compute at once, as on a device, or when collected."""
    target = fakes.runner(MODEL)
    target = fakes.computed_at_launch(target) if is_early else target
    return fakes.pipeline(target, store=store, is_overlapped=True)


def check_memory(local: LocalPipeline) -> None:
    """Check that the last commit is heard of and every page is free."""
    local.step()
    pool = local.verifier.target.pool
    assert local.verifier.sequences == {}
    assert pool.num_free == pool.num_pages


class Recording(MemoryStore):
    """A store that notes each commit, and can be away."""

    def __init__(self) -> None:
        super().__init__(is_alive=lambda owner: owner not in self.dead)
        self.dead: set[str] = set()
        self.is_away = False
        self.commits: list[int] = []  # steps launched by the time of each commit
        self.launched = 0

    def commit(self, owner, events):
        if self.is_away:
            raise StoreUnavailable("gone for a while")
        self.commits.append(self.launched)
        return super().commit(owner, events)


def counted(local: LocalPipeline, store: Recording) -> LocalPipeline:
    """Count the launches of a pipeline in its store."""
    launch = local.verifier.target.launch

    def launched(works):
        store.launched += 1
        return launch(works)

    local.verifier.target.launch = launched
    return local


def test_a_step_is_launched_before_the_last_ones_tokens_are_committed():
    store = Recording()
    local = counted(overlapped(store), store)
    fakes.submit(local, fakes.record(PROMPTS[0], 5))
    fakes.finish(local)
    assert store.commits == [2, 3, 4, 5, 5], "the first commit goes out beside the second step; the last has none"
    assert list(store.snapshot("r").tokens) == expected(PROMPTS[0], 5)
    assert [one.id for one in local.verifier.take_ended()] == []
    local.step()
    assert [one.id for one in local.verifier.take_ended()] == ["r"], "once its commit is heard of"
    check_memory(local)


def test_a_sequence_that_is_over_is_in_no_further_step():
    sizes = []
    local = overlapped()
    launch = local.verifier.target.launch

    def launched(works):
        sizes.append(len(works))
        return launch(works)

    local.verifier.target.launch = launched
    short, long = fakes.record(PROMPTS[0], 2, request_id="short"), fakes.record(PROMPTS[1], 5, request_id="long")
    assert fakes.texts(local, short, long) == [expected(PROMPTS[0], 2), expected(PROMPTS[1], 5)]
    assert sizes == [2, 2, 1, 1, 1]


def test_waiting_is_over_while_a_step_runs_or_an_end_is_not_heard_of():
    local = overlapped()
    assert local.verifier.wait_s(0.0) is None
    fakes.submit(local, fakes.record(PROMPTS[0], 1))
    local.step()
    assert local.verifier.wait_s(0.0) == 0.0, "a step runs"
    local.step()
    assert local.store.snapshot("r").status is Status.DONE
    assert local.verifier.wait_s(0.0) == 0.0, "its outcome is to be read"
    local.step()
    assert local.verifier.wait_s(0.0) is None


@pytest.mark.parametrize("is_early", [True, False])
def test_a_request_released_while_its_step_runs_leaves_the_others_alone(is_early: bool):
    local = overlapped(is_early=is_early)
    gone, stays = fakes.record(PROMPTS[0], 30, request_id="gone"), fakes.record(PROMPTS[1], 12, request_id="stays")
    fakes.submit(local, gone, stays)
    for _ in range(3):
        local.step()
    local.store.end("gone", FinishReason.CANCELLED)
    local.verifier.release(["gone"])
    newcomer = fakes.record(PROMPTS[2], 8, request_id="new")  # takes the pages that the running step still writes
    fakes.submit(local, newcomer)
    local.step()
    assert not local.verifier.sequences.suspects, "the step that ran has not failed"
    fakes.finish(local)
    assert list(local.store.snapshot("stays").tokens) == expected(PROMPTS[1], 12)
    assert list(local.store.snapshot("new").tokens) == expected(PROMPTS[2], 8)
    check_memory(local)


def test_a_request_adopted_anew_while_its_old_step_runs_gives_the_same_text():
    local = overlapped()
    fakes.submit(local, fakes.record(PROMPTS[0], 12))
    for _ in range(3):
        local.step()
    local.verifier.release(["r"])
    local.verifier.adopt(["r"])
    fakes.finish(local)
    assert list(local.store.snapshot("r").tokens) == expected(PROMPTS[0], 12)
    check_memory(local)


def test_a_request_that_ends_is_not_taken_for_lost_before_its_commit_is_heard_of():
    local = overlapped()
    fakes.submit(local, fakes.record(PROMPTS[0], 2))
    for _ in range(3):
        local.step()
    assert local.store.snapshot("r").status is Status.DONE
    local.verifier.release(["r"])  # as a reconciliation with the store does: it owns the request no more
    assert local.verifier.take_ended() == []
    local.step()
    assert [one.id for one in local.verifier.take_ended()] == ["r"]
    check_memory(local)


def test_a_fenced_commit_is_heard_of_a_step_later_and_drops_what_was_built_on_it():
    store = Recording()
    local = overlapped(store)
    lost, stays = fakes.record(PROMPTS[0], 12, request_id="lost"), fakes.record(PROMPTS[1], 12, request_id="stays")
    fakes.submit(local, lost, stays)
    for _ in range(3):
        local.step()
    store.dead.add("owner")
    assert store.assign("lost", "other")
    store.dead.discard("owner")
    while "lost" in local.verifier.sequences:
        local.step()
    other = fakes.pipeline(fakes.runner(MODEL), store=store)
    before = len(store.snapshot("lost").tokens)
    while store.snapshot("stays").status is Status.ACTIVE:
        local.step()
    assert len(store.snapshot("lost").tokens) == before, "nothing more was committed of it"
    assert list(store.snapshot("stays").tokens) == expected(PROMPTS[1], 12)
    check_memory(local)
    del other


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_a_store_that_is_away_for_a_while_costs_time_and_no_token(steps: int):
    store = Recording()
    local = overlapped(store)
    records = [fakes.record(prompt, 9, request_id=f"r{i}") for i, prompt in enumerate(PROMPTS)]
    fakes.submit(local, *records)
    for _ in range(steps):
        local.step()
    store.is_away = True
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            for _ in range(2):
                local.step()
    store.is_away = False
    fakes.finish(local)
    for one in records:
        assert list(store.snapshot(one.id).tokens) == expected(list(one.prompt_ids), 9)
    check_memory(local)


def test_a_step_that_fails_when_collected_ends_the_request_at_fault_alone():
    local = overlapped()
    launch = local.verifier.target.launch

    def launched(works):
        step = launch(works)
        if any(work.sequence.id == "poison" for work in works):
            step = fakes.failing_step(RuntimeError("out of something"))
        return step

    local.verifier.target.launch = launched
    records = [fakes.record(prompt, 8, request_id=f"r{i}") for i, prompt in enumerate(PROMPTS)]
    fakes.submit(local, *records[:2])
    for _ in range(2):
        local.step()
    fakes.submit(local, fakes.record([1, 2], 8, request_id="poison"), *records[2:])
    fakes.finish(local)
    assert local.store.snapshot("poison").status is Status.FAILED
    for one in records:
        assert list(local.store.snapshot(one.id).tokens) == expected(list(one.prompt_ids), 8)
    check_memory(local)


def test_a_round_that_is_cut_short_commits_later_what_it_accepted():
    store = Recording()
    local = overlapped(store)
    fakes.submit(local, fakes.record(PROMPTS[0], 6))
    for _ in range(2):
        local.step()
    local.verifier.collect()
    local.verifier.launch(float("inf"))  # and nothing of the rest
    fakes.finish(local)
    assert list(store.snapshot("r").tokens) == expected(PROMPTS[0], 6)
    assert store.snapshot("r").strikes == 0
    check_memory(local)

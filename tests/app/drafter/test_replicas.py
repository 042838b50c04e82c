from app.drafter.replicas import Replicas, fetcher
from app.errors import NotFound
from app.messages import DraftJob, Event
from app.request import Sampling
from app.stages.draft.protocol import Context
from app.store.memory import MemoryStore
from tests import fakes


class Watcher:
    """A drafter that only notes what it sees."""

    name = "watcher"

    def __init__(self) -> None:
        self.seen: list[list[int]] = []
        self.forgotten: list[str] = []

    def draft(self, contexts):
        return []

    def update(self, context: Context) -> None:
        self.seen.append(list(context.tokens))

    def remove(self, request_id: str) -> None:
        self.forgotten.append(request_id)


def job(start: int, tokens: list[int]) -> DraftJob:
    return DraftJob(
        request_id="r",
        tenant="t",
        verifier="v",
        fuser="f",
        base=start + len(tokens),
        start=start,
        tokens=tuple(tokens),
        prompt_length=2,
        max_draft_tokens=4,
        drafters=(),
        sampling=Sampling(temperature=0.5),
        due_s=0.0,
    )


def following(fetched: list[int] | None = None) -> tuple[Replicas, Watcher, list[str]]:
    watcher, asked = Watcher(), []

    def fetch(request_id: str) -> list[int] | None:
        asked.append(request_id)
        return fetched

    return Replicas([watcher], fetch), watcher, asked


def test_jobs_that_join_up_are_followed_without_a_fetch():
    follow, watcher, asked = following()
    assert follow.follow(job(0, [1, 2])).tokens == [1, 2]
    context = follow.follow(job(2, [3, 4, 5]))
    assert context == Context("r", "t", [1, 2, 3, 4, 5], 2, 4, Sampling(temperature=0.5))
    assert watcher.seen == [[1, 2], [1, 2, 3, 4, 5]]
    assert asked == []


def test_a_gap_is_filled_from_the_store_up_to_the_jobs_length():
    follow, watcher, asked = following([1, 2, 3, 4, 5, 6, 7])
    assert follow.follow(job(3, [4, 5])).tokens == [1, 2, 3, 4, 5]
    assert asked == ["r"]
    assert watcher.seen == [[1, 2, 3, 4, 5]]


def test_a_job_whose_sequence_is_gone_or_shorter_is_not_followed():
    for fetched in (None, [1, 2, 3]):
        follow, watcher, _ = following(fetched)
        assert follow.follow(job(3, [4, 5])) is None
        assert watcher.seen == []


def test_a_stale_job_is_not_followed():
    follow, watcher, _ = following()
    follow.follow(job(0, [1, 2, 3]))
    assert follow.follow(job(0, [1, 2])) is None
    assert watcher.seen == [[1, 2, 3]]


def test_a_forgotten_sequence_is_forgotten_by_its_drafters_too():
    follow, watcher, asked = following([1, 2, 3, 4])
    follow.follow(job(0, [1, 2, 3]))
    follow.remove("r")
    assert watcher.forgotten == ["r"]
    follow.follow(job(3, [4]))
    assert asked == ["r"], "it has to be fetched again"


def test_the_store_is_asked_for_prompt_and_committed_tokens():
    store = MemoryStore()
    store.create(fakes.record([7, 8]), limit=1)
    store.assign("r", "owner")
    store.commit("owner", [("r", Event(offset=0, tokens=(9, 10), proposers=("target",) * 2))])
    assert fetcher(store)("r") == [7, 8, 9, 10]
    assert fetcher(store)("nobody") is None
    try:
        store.snapshot("nobody")
    except NotFound:
        return
    raise AssertionError("the store does not know it")


def test_the_targets_state_comes_along_and_what_is_no_base64_does_not():
    follow, _, _ = following()
    assert follow.follow(job(0, [1, 2]).model_copy(update={"state": "AAE="})).state == b"\x00\x01"
    assert follow.follow(job(2, [3]).model_copy(update={"state": "not base64!"})).state is None
    assert follow.follow(job(3, [4])).state is None

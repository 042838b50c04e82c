from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.drafter.replicas import Replicas, fetcher
from app.errors import NotFound
from app.messages import DraftJob, Event
from app.request import Sampling
from app.stages.draft.protocol import Context
from app.store.memory import MemoryStore
from tests import fakes
from tests.records import draft_job


class Watcher:
    """A drafter that only records its calls."""

    name = "watcher"

    def __init__(self) -> None:
        self.seen: list[list[int]] = []
        self.removed: list[str] = []

    def draft(self, contexts):
        return []

    def update(self, context: Context) -> None:
        self.seen.append(list(context.tokens))

    def remove(self, request_id: str) -> None:
        self.removed.append(request_id)


TEXT = list(range(100, 140))


def job(start: int, tokens: list[int], request_id: str = "r") -> DraftJob:
    about = {"tenant": "t", "prompt_length": 2, "sampling": Sampling(temperature=0.5)}
    return draft_job(request_id, tokens, (), start, **about)


def replicas_of(fetched: list[int] | None = None, **rest: int) -> tuple[Replicas, Watcher, list[str]]:
    watcher, fetches = Watcher(), []

    def fetch(request_id: str) -> list[int] | None:
        fetches.append(request_id)
        return fetched

    return Replicas([watcher], fetch, **rest), watcher, fetches


def test_jobs_that_join_up_need_no_fetch():
    replicas, watcher, fetches = replicas_of()
    assert replicas.update(job(0, [1, 2])).tokens == [1, 2]
    context = replicas.update(replace(job(2, [3, 4, 5]), has_leaves=False))
    assert context == Context("r", "t", [1, 2, 3, 4, 5], 2, 4, Sampling(temperature=0.5), has_leaves=False)
    assert watcher.seen == [[1, 2], [1, 2, 3, 4, 5]]
    assert fetches == []


def test_a_gap_is_filled_from_the_store():
    replicas, watcher, fetches = replicas_of([1, 2, 3, 4, 5, 6, 7])
    assert replicas.update(job(3, [4, 5])).tokens == [1, 2, 3, 4, 5]
    assert fetches == ["r"]
    assert watcher.seen == [[1, 2, 3, 4, 5]]


def test_a_gone_or_shorter_sequence_has_no_context():
    for fetched in (None, [1, 2, 3]):
        replicas, watcher, _ = replicas_of(fetched)
        assert replicas.update(job(3, [4, 5])) is None
        assert watcher.seen == []


def test_a_stale_job_has_no_context():
    replicas, watcher, _ = replicas_of()
    replicas.update(job(0, [1, 2, 3]))
    assert replicas.update(job(0, [1, 2])) is None
    assert watcher.seen == [[1, 2, 3]]


def test_drafters_remove_a_removed_sequence():
    replicas, watcher, fetches = replicas_of([1, 2, 3, 4])
    replicas.update(job(0, [1, 2, 3]))
    replicas.remove("r")
    assert watcher.removed == ["r"]
    replicas.update(job(3, [4]))
    assert fetches == ["r"], "it has to be fetched again"


def test_prompt_and_committed_tokens_are_fetched():
    store = MemoryStore()
    store.create(fakes.record([7, 8]), limit=1)
    store.assign("r", "owner")
    store.commit("owner", [("r", Event(offset=0, tokens=(9, 10), proposers=("target",) * 2))])
    assert fetcher(store)("r") == [7, 8, 9, 10]
    assert fetcher(store)("unknown") is None
    try:
        store.snapshot("unknown")
    except NotFound:
        return
    raise AssertionError("the store does not know it")


def test_the_targets_state_is_decoded_from_valid_base64():
    replicas, _, _ = replicas_of()
    assert replicas.update(replace(job(0, [1, 2]), state="AAE=")).state == b"\x00\x01"
    assert replicas.update(replace(job(2, [3]), state="not base64!")).state is None
    assert replicas.update(job(3, [4])).state is None


@given(st.lists(st.tuples(st.integers(0, 39), st.integers(1, 40)), max_size=20))
def test_a_replica_is_a_prefix_of_the_text_in_any_order_of_jobs(jobs: list[tuple[int, int]]) -> None:
    replicas, watcher, fetches = replicas_of(TEXT)
    known = 0
    for start, base in jobs:
        start = min(start, base - 1)
        fetches.clear(), watcher.seen.clear()
        context = replicas.update(job(start, TEXT[start:base]))
        is_stale = known > base
        assert (context is None) == is_stale
        assert bool(fetches) == (not is_stale and start > known), "only a gap is fetched"
        assert watcher.seen == ([] if is_stale else [TEXT[:base]])
        if context is not None:
            assert context.tokens == TEXT[:base]
            known = base


def test_a_replica_that_contradicts_the_job_is_dropped() -> None:
    replicas, _, fetches = replicas_of()
    replicas.update(job(0, [1, 2, 3, 4]))
    assert replicas.update(job(2, [9, 9, 9])) is None
    assert fetches == ["r"]
    assert replicas.update(job(4, [5])) is None
    assert fetches == ["r", "r"], "it is gone"
    replicas.update(job(0, [1, 2, 3]))
    assert replicas.update(job(0, [1, 2, 9])).tokens == [1, 2, 9]
    assert fetches == ["r", "r"]


def test_a_job_whose_tokens_do_not_reach_its_base_is_a_gap() -> None:
    replicas, _, fetches = replicas_of()
    broken = replace(job(0, TEXT[:4]), base=6)
    assert replicas.update(broken) is None
    assert fetches == ["r"]
    replicas.update(job(0, TEXT[:4]))
    assert replicas.update(broken) is None
    assert fetches == ["r", "r"]


def test_a_growing_replica_keeps_its_list_object() -> None:
    replicas, _, _ = replicas_of()
    first = replicas.update(job(0, TEXT[:3]))
    assert replicas.update(job(3, TEXT[3:5])).tokens is first.tokens


def test_memory_is_bounded_least_recent_first() -> None:
    replicas, _, fetches = replicas_of(max_tokens=100)

    def is_held(request_id: str) -> bool:
        fetches.clear()
        context = replicas.update(job(40, [], request_id))
        assert context is None or context.tokens == TEXT
        return not fetches

    for i in range(5):
        replicas.update(job(0, TEXT, request_id=str(i)))
        replicas.update(job(0, TEXT, request_id="0"))
    assert [name for name in "01234" if is_held(name)] == ["0", "4"]
    replicas.remove("0")
    replicas.remove("unknown")
    replicas.update(job(0, [7] * 60, request_id="fits"))
    assert is_held("4"), "the removed one's tokens count no more"
    replicas.update(job(0, [7], request_id="too much"))
    assert not is_held("fits")


def test_the_list_of_a_verifier_in_this_process_is_read_and_not_copied() -> None:
    watcher, own = Watcher(), {"r": TEXT[:8]}
    fetches: list[str] = []
    replicas = Replicas([watcher], fetches.append, own=own.get)  # a fetch finds nothing
    context = replicas.update(job(0, TEXT[:8]))
    assert context is not None and context.tokens is own["r"]
    own["r"] += TEXT[8:11]
    again = replicas.update(job(8, TEXT[8:11]))
    assert again is not None and again.tokens is own["r"] and watcher.seen[-1] == TEXT[:11]
    assert fetches == []
    assert replicas.update(job(8, TEXT[8:10])) is None, "its verifier has gone on since"
    assert fetches == ["r"], "a job from elsewhere, whose tokens are not known here"
    last = replace(job(8, TEXT[8:11]), is_last=True)
    assert replicas.update(last) is not None
    own.clear()
    assert replicas.update(last) is None
    assert fetches == ["r"], "what is over is not worth one"

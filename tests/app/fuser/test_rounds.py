import sys

from app.fuser.rounds import MAX_EARLY, MAX_EARLY_EACH, FuseRounds, message
from app.messages import Draft, DraftJob
from app.request import Sampling
from app.stages.draft.protocol import Context
from tests import fakes


def job(base: int = 5, request_id: str = "r", drafters: tuple[str, ...] = ("a", "b"), due_s: float = 10.0) -> DraftJob:
    return DraftJob(
        request_id=request_id,
        verifier="v",
        fuser="f",
        base=base,
        start=0,
        tokens=(1,) * base,
        prompt_length=2,
        max_draft_tokens=4,
        drafters=drafters,
        sampling=Sampling(),
        due_s=due_s,
    )


def draft(drafter: str, base: int = 5, request_id: str = "r", token: int = 1) -> Draft:
    return Draft(request_id=request_id, base=base, drafter=drafter, tokens=(token,), parents=(0,), confidences=(0.5,))


def opened(*jobs: DraftJob, residents: tuple[str, ...] = ()) -> FuseRounds:
    gathering = FuseRounds(residents)
    for one in jobs:
        open_round(gathering, one)
    return gathering


def open_round(gathering: FuseRounds, one: DraftJob) -> None:
    context = Context(one.request_id, "public", list(one.tokens), 2, one.max_draft_tokens, one.sampling)
    gathering.open(one, context)


def names(gathering: FuseRounds, now_s: float = 0.0) -> list[list[str]]:
    return [sorted(closed.drafts) for closed in gathering.close_ready(now_s)]


def test_a_round_closes_when_every_drafter_asked_has_answered():
    gathering = opened(job())
    gathering.add(draft("a"))
    assert names(gathering) == []
    gathering.add(draft("b"))
    assert names(gathering) == [["a", "b"]]
    assert names(gathering, now_s=99.0) == [], "it closes once"


def test_a_round_closes_with_what_it_has_when_it_is_due():
    gathering = opened(job())
    gathering.add(draft("b"))
    assert gathering.wait_s(7.0) == 3.0
    assert names(gathering, now_s=9.9) == []
    assert names(gathering, now_s=10.0) == [["b"]]
    assert gathering.wait_s(10.0) is None


def test_nobody_waits_for_residents():
    assert names(opened(job(drafters=("a",)), residents=("a",))) == [[]]


def test_a_draft_that_overtakes_its_job_is_kept_for_it():
    gathering = opened()
    gathering.add(draft("a"))
    gathering.add(draft("b", base=6))
    open_round(gathering, job())
    assert names(gathering, now_s=10.0) == [["a"]]
    open_round(gathering, job(base=6, drafters=("b",)))
    assert names(gathering) == [["b"]]


def test_a_stale_or_repeated_draft_changes_nothing():
    gathering = opened(job())
    gathering.add(draft("a", token=1))
    gathering.add(draft("a", token=2))
    gathering.add(draft("b", base=4))
    assert names(gathering) == []
    (closed,) = gathering.close_ready(10.0)
    assert closed.drafts == {"a": draft("a", token=1)}


def test_a_new_round_takes_the_place_of_an_open_one():
    gathering = opened(job(), job(base=7, drafters=("a",)))
    gathering.add(draft("a"))
    gathering.add(draft("b"))
    assert names(gathering) == []
    gathering.add(draft("a", base=7))
    assert [closed.job.base for closed in gathering.close_ready(0.0)] == [7]


def test_the_last_round_is_given_once():
    gathering = opened(job(drafters=()), job(request_id="other"))
    (closed,) = gathering.close_ready(0.0)
    assert gathering.last("r") is closed
    assert gathering.last("r") is None
    assert gathering.last("other") is None, "it is still open"
    assert gathering.wait_s(0.0) is None, "and now given up"


def test_early_drafts_take_bounded_memory():
    gathering = opened()
    for i in range(3 * MAX_EARLY):
        gathering.add(draft("a", request_id=f"r{i}"))
    for i in range(1000):
        gathering.add(draft(f"d{i}", request_id="flooded"))
    assert len(gathering._early) <= MAX_EARLY
    assert all(len(drafts) <= MAX_EARLY_EACH for drafts in gathering._early.values())
    assert sys.getsizeof(gathering._early["flooded", 5]) < 10_000


def test_a_message_carries_the_whole_tree():
    tree = fakes.tree([4, 5, 6], [0, 0, 1])
    sent = message(job(), tree)
    assert (sent.request_id, sent.base) == ("r", 5)
    assert [sent.tokens, sent.parents] == [(4, 5, 6), (0, 0, 1)]
    assert [list(sent.survival), list(sent.proposers)] == [tree.survival, tree.proposers]

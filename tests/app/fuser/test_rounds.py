import sys
from typing import Any

import pytest
from msgspec.structs import replace

from app.fuser.early_mail import MAX_EARLY, MAX_EARLY_EACH
from app.fuser.rounds import FuseRound, FuseRounds
from app.messages import Draft, DraftJob
from app.stages.draft.protocol import Context
from tests import fakes
from tests.records import draft_job


def job(base: int = 5, request_id: str = "r", drafters: tuple[str, ...] = ("a", "b"), due_s: float = 10.0) -> DraftJob:
    return draft_job(request_id, (1,) * base, drafters, due_s=due_s)


def draft(drafter: str, base: int = 5, request_id: str = "r", token: int = 1) -> Draft:
    return Draft(request_id=request_id, base=base, drafter=drafter, tokens=(token,), parents=(0,), confidences=(0.5,))


def opened(*jobs: DraftJob, model_free: tuple[str, ...] = ()) -> FuseRounds:
    rounds = FuseRounds(model_free)
    for one in jobs:
        open_round(rounds, one)
    return rounds


def context(one: DraftJob) -> Context:
    return Context(one.request_id, "public", list(one.tokens), 2, one.max_draft_tokens, one.sampling)


def never(one: DraftJob) -> bool:
    return False


def open_round(rounds: FuseRounds, one: DraftJob) -> None:
    rounds.open(one, context(one))


def names(rounds: FuseRounds, now_s: float = 0.0) -> list[list[str]]:
    return [sorted(closed.drafts) for closed in rounds.close_ready(now_s, never)]


def test_a_round_closes_when_every_drafter_asked_has_answered():
    rounds = opened(job())
    rounds.add(draft("a"))
    assert names(rounds) == []
    rounds.add(draft("b"))
    assert names(rounds) == [["a", "b"]]
    assert names(rounds, now_s=99.0) == [], "it closes once"


def test_a_due_round_closes_with_the_drafts_received():
    rounds = opened(job())
    rounds.add(draft("b"))
    assert rounds.wait_s(7.0) == 3.0
    assert names(rounds, now_s=9.9) == []
    assert names(rounds, now_s=10.0) == [["b"]]
    assert rounds.wait_s(10.0) is None


def test_no_round_waits_for_model_free_drafters():
    assert names(opened(job(drafters=("a",)), model_free=("a",))) == [[]]


def test_a_draft_that_overtakes_its_job_is_kept_for_it():
    rounds = opened()
    rounds.add(draft("a"))
    rounds.add(draft("b", base=6))
    open_round(rounds, job())
    assert names(rounds, now_s=10.0) == [["a"]]
    open_round(rounds, job(base=6, drafters=("b",)))
    assert names(rounds) == [["b"]]


def test_a_stale_or_repeated_draft_changes_nothing():
    rounds = opened(job())
    rounds.add(draft("a", token=1))
    rounds.add(draft("a", token=2))
    rounds.add(draft("b", base=4))
    rounds.add(draft("not asked"))
    assert names(rounds) == []
    (closed,) = rounds.close_ready(10.0, never)
    assert closed.drafts == {"a": draft("a", token=1)}


def test_a_new_round_takes_the_place_of_an_open_one():
    rounds = opened(job(), job(base=7, drafters=("a",)))
    rounds.add(draft("a"))
    rounds.add(draft("b"))
    assert names(rounds) == []
    rounds.add(draft("a", base=7))
    assert [closed.job.base for closed in rounds.close_ready(0.0, never)] == [7]


def test_a_removed_round_never_closes():
    rounds = opened(job(drafters=()), job(request_id="other"))
    rounds.remove("other")
    assert [closed.job.request_id for closed in rounds.close_ready(99.0, never)] == ["r"]
    assert rounds.wait_s(0.0) is None


def test_early_drafts_take_bounded_memory():
    rounds = opened()
    for i in range(3 * MAX_EARLY):
        rounds.add(draft("a", request_id=f"r{i}"))
    for i in range(1000):
        rounds.add(draft(f"d{i}", request_id="flooded"))
    for name in (*(f"r{i}" for i in range(3 * MAX_EARLY)), "flooded"):
        open_round(rounds, job(request_id=name, drafters=("a", *(f"d{i}" for i in range(1000)))))
    kept = [closed.drafts for closed in rounds.close_ready(10.0, never) if closed.drafts]
    assert len(kept) <= MAX_EARLY
    assert all(len(drafts) <= MAX_EARLY_EACH for drafts in kept)
    assert len(kept[-1]) > 1, "the flooded one"
    assert sys.getsizeof(kept[-1]) < 10_000


def test_a_message_carries_the_whole_tree():
    tree = fakes.tree([4, 5, 6], [0, 0, 1])
    sent = FuseRound(job(), context(job()), {}, tree=tree).message()
    assert (sent.request_id, sent.base) == ("r", 5)
    assert [sent.tokens, sent.parents] == [(4, 5, 6), (0, 0, 1)]
    assert [list(sent.survival), list(sent.proposers)] == [tree.survival, tree.proposers]


def confidence_of(**fields: Any) -> dict[str, float]:
    opened_round = FuseRound(job(), context(job()), {"a": replace(draft("a"), **fields)})
    return dict(opened_round.message().confidence)


def test_a_drafters_confidence_is_the_mean_of_its_own_likeliest_token_at_each_depth():
    chain = confidence_of(tokens=(1, 2), parents=(0, 1), confidences=(0.75, 0.25))
    assert chain == {"a": 0.5}
    # Of a path that others chose it has a leaf beside the first token, with a second best, and the second token.
    comb = confidence_of(tokens=(1, 8, 9, 2), parents=(0, 0, 0, 1), confidences=(0.0, 0.5, 0.2, 0.75), borrowed=(1,))
    assert comb == {"a": 0.625}
    late = confidence_of(tokens=(1, 2), parents=(0, 1), confidences=(0.0, 0.75), borrowed=(1,))
    assert late == {"a": 0.75}, "it guessed nothing at the first place"


@pytest.mark.parametrize("parents", [(7, 1), (-1, 0), (), ("x", 0)])
def test_a_malformed_draft_has_no_confidence(parents: tuple[Any, ...]):
    assert confidence_of(tokens=(1, 2), parents=parents, confidences=(0.75, 0.25)) == {}
    assert confidence_of(tokens=(1,), parents=(0,), confidences=(float("nan"),)) == {}

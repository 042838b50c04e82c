from msgspec.structs import replace

from app.fuser.fuser import Fuser
from app.messages import Draft, DraftReport
from app.request import Sampling
from app.stages.draft.protocol import Context
from tests import fakes
from tests.fakes import Scripted, draft_job, guessing


def drafts(drafter: Scripted, tokens: list[int]) -> list[Draft]:
    return drafter.draft([Context("r", "public", tokens, 1, 4, Sampling())])


def test_all_drafts_go_into_one_tree_for_the_verifier():
    fuser = Fuser([guessing("b", 2)], fakes.VOCAB, lambda _: None)
    fuser.expect([draft_job("r", [1, 1], ("a", "b"))])
    assert fuser.collect(0.0) == []
    fuser.receive(drafts(guessing("a", 1, 3), [1, 1]))
    ((mailbox, tree),) = fuser.collect(0.0)
    assert (mailbox, tree.request_id, tree.base) == ("v", "r", 2)
    assert sorted(zip(tree.tokens, tree.proposers, strict=True)) == [(1, ("a",)), (2, ("b",)), (3, ("a",))]


def test_no_round_waits_for_an_absent_model_free_drafter():
    fuser = Fuser([guessing("b", 2)], fakes.VOCAB, lambda _: None)
    fuser.expect([draft_job("r", [1, 1], ("b", "phrases"))])
    ((_, tree),) = fuser.collect(0.0)
    assert tree.tokens == (2,)


def test_a_draft_for_another_request_is_dropped():
    fuser = Fuser([guessing("b", 2, request_id="unknown")], fakes.VOCAB, lambda _: None)
    fuser.expect([draft_job("r", [1, 1], ("b",))])
    ((_, tree),) = fuser.collect(0.0)
    assert tree.tokens == ()


def test_a_stale_job_closes_no_newer_round():
    fuser = Fuser([guessing("b", 2)], fakes.VOCAB, lambda _: None)
    fuser.expect([draft_job("r", [1, 1], ("b",)), replace(draft_job("r", [1], ("b",)), tokens=(), base=1)])
    assert [tree.base for _, tree in fuser.collect(0.0)] == [2]


def test_an_ended_sequence_gets_no_tree():
    fuser = Fuser([], fakes.VOCAB, lambda _: None)
    fuser.expect([draft_job("r", [1, 1])])
    fuser.expect([draft_job("r", [1, 1, 1], is_last=True)])
    assert fuser.collect(99.0) == []


def test_a_tree_carries_the_reports_of_its_drafts():
    fuser = Fuser([guessing("b", 2)], fakes.VOCAB, lambda _: None)
    fuser.expect([draft_job("r", [1, 1], ("a", "b"))])
    (draft,) = drafts(guessing("a", 1), [1, 1])
    fuser.receive([replace(draft, report=DraftReport(guess_s=0.5))])
    ((_, tree),) = fuser.collect(0.0)
    assert tree.reports == {"a": DraftReport(guess_s=0.5)}

import pytest
from msgspec.structs import replace

from app.fuser.fuser import TEACHING, Fuser
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


def test_a_due_round_makes_a_tree_of_the_drafts_received():
    fuser = Fuser([], fakes.VOCAB, lambda _: None)
    fuser.expect([draft_job("r", [1, 1])])
    assert fuser.wait_s(4.0) == 5.0
    ((_, tree),) = fuser.collect(9.0)
    assert tree.tokens == ()


def test_a_draft_for_another_request_is_dropped():
    fuser = Fuser([guessing("b", 2, request_id="unknown")], fakes.VOCAB, lambda _: None)
    fuser.expect([draft_job("r", [1, 1], ("b",))])
    ((_, tree),) = fuser.collect(0.0)
    assert tree.tokens == ()


def test_a_drafter_that_was_wrong_is_believed_less():
    fuser = Fuser([], fakes.VOCAB, lambda _: None)
    drafter = guessing("a", 7, confidences=(0.9,))
    survivals = []
    for length in range(1, 30):
        fuser.expect([draft_job("r", [1] * length)])
        fuser.receive(drafts(drafter, [1] * length))
        ((_, tree),) = fuser.collect(0.0)
        survivals.append(tree.survival[0])
    assert survivals[0] == pytest.approx(0.9)
    assert survivals[-1] < 0.4


def test_an_ended_sequence_gets_no_tree():
    fuser = Fuser([], fakes.VOCAB, lambda _: None)
    fuser.expect([draft_job("r", [1, 1])])
    fuser.expect([draft_job("r", [1, 1, 1], is_last=True)])
    assert fuser.collect(99.0) == []


def test_of_many_sequences_some_teach_the_calibration_in_turn():
    fuser = Fuser([], fakes.VOCAB, lambda _: None)
    drafter = guessing("a", 7, confidences=(0.9,))
    ids, seen = [f"r{i}" for i in range(3 * TEACHING)], [0]
    for length in range(1, 8):
        fuser.expect([draft_job(request_id, [1] * length) for request_id in ids])
        fuser.receive(replace(draft, request_id=one) for one in ids for draft in drafts(drafter, [1] * length))
        fuser.collect(0.0)
        seen.append(fuser.calibration.report()["a"].observations if length > 1 else 0)
    assert {after - before for before, after in zip(seen[1:], seen[2:], strict=False)} == {TEACHING}


def test_each_of_many_sequences_has_its_turn_to_teach():
    fuser = Fuser([], fakes.VOCAB, lambda _: None)
    names = [f"d{i}" for i in range(3 * TEACHING)]
    for length in range(1, 5):
        fuser.expect([draft_job(f"r{name}", [1] * length, (name,)) for name in names])
        for name in names:
            (draft,) = drafts(guessing(name, 7, confidences=(0.9,)), [1] * length)
            fuser.receive([replace(draft, request_id=f"r{name}")])
        fuser.collect(0.0)
    assert {name: one.observations for name, one in fuser.calibration.report().items()} == dict.fromkeys(names, 1)


def test_a_tree_carries_the_reports_of_its_drafts():
    fuser = Fuser([guessing("b", 2)], fakes.VOCAB, lambda _: None)
    fuser.expect([draft_job("r", [1, 1], ("a", "b"))])
    (draft,) = drafts(guessing("a", 1), [1, 1])
    fuser.receive([replace(draft, report=DraftReport(guess_s=0.5))])
    ((_, tree),) = fuser.collect(0.0)
    assert tree.reports == {"a": DraftReport(guess_s=0.5)}
